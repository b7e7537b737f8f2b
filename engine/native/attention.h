// Paged attention: decode and prefill by one kernel, with one order over the keys.
//
// The pool keeps sixteen tokens of one layer and head together: their keys as a panel, so
// that scores are a product of rows and panels, then their values, a word of each element
// after the other, so that weighted sums are products too. A row
// walks the keys from the first in tiles of 64 with a running maximum (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018). The tiles' borders and the
// order within them follow from the row's position alone.
#pragma once

#include <cmath>

#include "linear.h"

namespace tidegate {

// Consecutive tokens of one sequence.
struct Segment {
    int32_t first_row;
    int32_t start;           // position of the first token
    int32_t length;
    const int32_t* table;    // block ids, covering start + length tokens
};

// K and V of one layer: [blocks][block_tokens / 16][heads]{K panel, V}.
template <class E>
class LayerPool {
  public:
    using Storage = typename E::Storage;

    LayerPool(void* data, int block_tokens, int heads, int dim)
        : data_(static_cast<Storage*>(data)), block_panels_(block_tokens / PANEL_TOKENS),
          heads_(heads), dim_(dim) {}

    Storage* keys(const int32_t* table, int panel, int head) const {
        const int64_t block = table[panel / block_panels_];
        const int64_t index = (block * block_panels_ + panel % block_panels_) * heads_ + head;
        return data_ + index * 2 * PANEL_TOKENS * dim_;
    }
    Storage* values(const int32_t* table, int panel, int head) const {
        return keys(table, panel, head) + PANEL_TOKENS * dim_;
    }

    void write(const int32_t* table, int position, int head, const Storage* key,
               const Storage* value) const {
        const int panel = position / PANEL_TOKENS, lane = position % PANEL_TOKENS;
        Word* to = reinterpret_cast<Word*>(keys(table, panel, head)) + lane;
        const Word* from = reinterpret_cast<const Word*>(key);
        for (int k = 0; k < dim_ / E::PER_WORD; ++k) to[k * LANES] = from[k];
        Word* row = reinterpret_cast<Word*>(values(table, panel, head)) + lane / E::PER_WORD * dim_;
        for (int d = 0; d < dim_; d += LANES)
            E::store_part(row + d, value + d, lane % E::PER_WORD);
    }

  private:
    Storage* data_;
    int block_panels_;
    int heads_;
    int dim_;
};

// What one thread keeps of the rows that it attends for.
struct Attending {
    Arena memory{Arena::SMALL};
    Word* queries = nullptr;   // [rows][dim]
    float* highest = nullptr;  // a row's largest score so far
    float* total = nullptr;    // its weights so far, [rows][LANES], summed at the end
    float* sum = nullptr;      // its weighted values so far, [rows][dim]
    int capacity = 0;

    void reserve(int rows, int dim) {
        if (rows <= capacity) return;
        memory.clear();
        const size_t n = rows;
        queries = memory.take<Word>(n * dim);
        highest = memory.take<float>(n);
        total = memory.take<float>(n * LANES);
        sum = memory.take<float>(n * dim);
        capacity = rows;
    }
    void begin(int rows, int dim) {
        std::fill_n(highest, rows, -INFINITY);
        std::memset(total, 0, static_cast<size_t>(rows) * LANES * sizeof(float));
        std::memset(sum, 0, static_cast<size_t>(rows) * dim * sizeof(float));
    }
};

template <class E>
class Attention {
  public:
    using Storage = typename E::Storage;

    Attention(int query_heads, int heads, int dim, float scale)
        : query_heads_(query_heads), heads_(heads), group_(query_heads / heads), dim_(dim),
          words_(dim / E::PER_WORD), scale_(scale), rows_(std::max(1, 48 / group_)) {}

    // Attend for all rows: q and out are [rows][query_heads][dim]; K and V of the rows
    // themselves are in the pool by now.
    void run(Team& team, std::vector<Attending>& scratch, const LayerPool<E>& pool,
             const std::vector<Segment>& segments, const Storage* q, Storage* out) const {
        std::vector<Part> parts;
        for (const Segment& segment : segments)
            for (int row = 0; row < segment.length; row += rows_)
                parts.push_back({&segment, row, std::min(rows_, segment.length - row)});
        for (Attending& state : scratch) state.reserve(rows_ * group_, dim_);
        team.run(static_cast<int>(parts.size()) * heads_, [&](int task, int thread) {
            Attending& state = scratch[thread];
            attend(state, pool, parts[task / heads_], task % heads_, q, out);
        });
    }

  private:
    struct Part {
        const Segment* segment;
        int row;  // within the segment
        int rows;
    };

    void attend(Attending& state, const LayerPool<E>& pool, const Part& part, int head,
                const Storage* q, Storage* out) const {
        const int rows = part.rows * group_;
        const size_t first = part.segment->first_row + part.row;
        state.begin(rows, dim_);
        // The heads of a group lie side by side.
        for (int i = 0; i < part.rows; ++i)
            std::memcpy(state.queries + static_cast<size_t>(i) * group_ * words_,
                        q + ((first + i) * query_heads_ + head * group_) * dim_,
                        static_cast<size_t>(group_) * words_ * sizeof(Word));
        Unit<E> unit;
        const int position = part.segment->start + part.row;
        const int32_t* table = part.segment->table;
        // Tiles that every row sees whole are taken for all rows together, the others row by
        // row: a row is done with exactly the keys up to its own.
        int key = 0;
        for (; key + TILE_KEYS <= position + 1; key += TILE_KEYS)
            visit(unit, state, pool, table, head, key, TILE_KEYS, 0, rows);
        for (int last = position + part.rows - 1; key <= last; key += TILE_KEYS)
            for (int i = 0; i < part.rows; ++i) {
                const int seen = std::min(TILE_KEYS, position + i + 1 - key);
                if (seen > 0) visit(unit, state, pool, table, head, key, seen, i * group_, group_);
            }
        for (int i = 0; i < rows; ++i)
            finish(state, i,
                   out + ((first + i / group_) * query_heads_ + head * group_ + i % group_) * dim_);
    }

    // Let some rows see `count` keys from `key`, the first of a tile.
    void visit(Unit<E>& unit, Attending& state, const LayerPool<E>& pool, const int32_t* table,
               int head, int key, int count, int first, int rows) const {
        const int panels = (count + PANEL_TOKENS - 1) / PANEL_TOKENS;
        const Word* keys[TILE_PANELS];
        const Word* values[TILE_PANELS];
        for (int p = 0; p < panels; ++p) {
            keys[p] = reinterpret_cast<const Word*>(
                pool.keys(table, key / PANEL_TOKENS + p, head));
            values[p] = reinterpret_cast<const Word*>(
                pool.values(table, key / PANEL_TOKENS + p, head));
        }
        const int height = tile_height(rows, Unit<E>::HEIGHT);
        Tile<Unit<E>::ROWS> scores;
        alignas(64) float faded[LANES];
        for (int r = first; r < first + rows; r += height) {
            const int part = std::min(height, first + rows - r);
            unit.multiply({state.queries + static_cast<size_t>(r) * words_, words_, part, keys,
                           panels, words_, nullptr, 0, false}, scores);
            weigh(state, r, part, scores.at, count, faded);
            unit.gather({scores.at, faded, part, values, count, dim_},
                        state.sum + static_cast<size_t>(r) * dim_);
        }
    }

    // Turn some rows' scores into weights, in E's words; and by how much their earlier weights
    // fade.
    void weigh(Attending& state, int first, int rows, float (*scores)[TILE_COLUMNS], int count,
               float* faded) const {
        float* highest = state.highest + first;
        const Vec before = Float32::load(highest, rows);
        for (int i = 0; i < rows; ++i)
            highest[i] = std::max(highest[i], scale(scores[i], count));
        _mm512_store_ps(faded, exp(_mm512_sub_ps(before, Float32::load(highest, rows))));
        for (int i = 0; i < rows; ++i) {
            const Vec weights = exponentials(scores[i], count, highest[i]);
            float* total = state.total + static_cast<size_t>(first + i) * LANES;
            _mm512_store_ps(
                total, _mm512_fmadd_ps(_mm512_load_ps(total), _mm512_set1_ps(faded[i]), weights));
        }
    }

    // Scale a row's scores, those of keys that it does not see to minus infinity; the largest.
    float scale(float* scores, int count) const {
        const Vec scale = _mm512_set1_ps(scale_), never = _mm512_set1_ps(-INFINITY);
        Vec most = never;
        for (int p = 0; p < TILE_PANELS; ++p) {
            const Vec s = _mm512_mask_mul_ps(never, first_lanes(left(count, p)),
                                             _mm512_load_ps(scores + p * LANES), scale);
            _mm512_store_ps(scores + p * LANES, s);
            most = _mm512_max_ps(s, most);
        }
        return _mm512_reduce_max_ps(most);
    }

    // Put e^(score - highest) in the scores' place, in E's words; returns their sums by lane.
    static Vec exponentials(float* scores, int count, float highest) {
        const Vec top = _mm512_set1_ps(highest);
        Vec s[TILE_PANELS];
        for (int p = 0; p < TILE_PANELS; ++p)
            s[p] = _mm512_maskz_mov_ps(first_lanes(left(count, p)),
                                       exp(_mm512_sub_ps(_mm512_load_ps(scores + p * LANES), top)));
        for (int p = 0; p < TILE_PANELS; ++p)
            E::store(reinterpret_cast<Storage*>(scores) + p * LANES, s[p]);
        return _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
    }

    // How many of `count` keys lie in the p-th sixteen or, of those, before its end.
    static int left(int count, int p) { return std::clamp(count - p * LANES, 0, LANES); }

    void finish(Attending& state, int row, Storage* out) const {
        const float total =
            _mm512_reduce_add_ps(_mm512_load_ps(state.total + static_cast<size_t>(row) * LANES));
        const float* sum = state.sum + static_cast<size_t>(row) * dim_;
        for (int d = 0; d < dim_; d += LANES)
            E::store(out + d, _mm512_div_ps(_mm512_load_ps(sum + d), _mm512_set1_ps(total)));
    }

    int query_heads_;
    int heads_;
    int group_;
    int dim_;
    int words_;  // of a query
    float scale_;
    int rows_;  // of positions that a task takes together
};

}  // namespace tidegate
