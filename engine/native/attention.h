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

inline constexpr int PANEL_TOKENS = LANES;
inline constexpr int TILE_KEYS = TILE_COLUMNS;

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
    std::vector<const Word*> queries;
    std::vector<float> highest;  // a row's largest score so far
    Buffer<float> total;         // its weights so far, [rows][LANES], summed at the end
    Buffer<float> sum;           // its weighted values so far, [rows][dim]
    int capacity = 0;

    void reserve(int rows, int dim) {
        if (rows <= capacity) return;
        queries.resize(rows);
        highest.resize(rows);
        total = allocate<float>(static_cast<size_t>(rows) * LANES);
        sum = allocate<float>(static_cast<size_t>(rows) * dim);
        capacity = rows;
    }
    void begin(int rows, int dim) {
        std::fill_n(highest.begin(), rows, -INFINITY);
        std::memset(total.get(), 0, static_cast<size_t>(rows) * LANES * sizeof(float));
        std::memset(sum.get(), 0, static_cast<size_t>(rows) * dim * sizeof(float));
    }
};

template <class E>
class Attention {
  public:
    using Storage = typename E::Storage;

    Attention(int query_heads, int heads, int dim, float scale)
        : query_heads_(query_heads), heads_(heads), group_(query_heads / heads), dim_(dim),
          scale_(scale), rows_(std::max(1, 48 / group_)) {}

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
        for (int i = 0; i < rows; ++i)
            state.queries[i] = reinterpret_cast<const Word*>(
                q + ((first + i / group_) * query_heads_ + head * group_ + i % group_) * dim_);
        const int position = part.segment->start + part.row;
        const int32_t* table = part.segment->table;
        // Tiles that every row sees whole are taken for all rows together, the others row by
        // row: a row is done with exactly the keys up to its own.
        int key = 0;
        for (; key + TILE_KEYS <= position + 1; key += TILE_KEYS)
            visit(state, pool, table, head, key, TILE_KEYS, 0, rows);
        for (int last = position + part.rows - 1; key <= last; key += TILE_KEYS)
            for (int i = 0; i < part.rows; ++i) {
                const int seen = std::min(TILE_KEYS, position + i + 1 - key);
                if (seen > 0) visit(state, pool, table, head, key, seen, i * group_, group_);
            }
        for (int i = 0; i < rows; ++i)
            finish(state, i,
                   out + ((first + i / group_) * query_heads_ + head * group_ + i % group_) * dim_);
    }

    // Let some rows see `count` keys from `key`, the first of a tile.
    void visit(Attending& state, const LayerPool<E>& pool, const int32_t* table, int head, int key,
               int count, int first, int rows) const {
        const int panels = (count + PANEL_TOKENS - 1) / PANEL_TOKENS;
        const Word* keys[TILE_PANELS];
        const Word* values[TILE_PANELS];
        for (int p = 0; p < panels; ++p) {
            keys[p] = reinterpret_cast<const Word*>(
                pool.keys(table, key / PANEL_TOKENS + p, head));
            values[p] = reinterpret_cast<const Word*>(
                pool.values(table, key / PANEL_TOKENS + p, head));
        }
        const int height = tile_height(rows);
        for (int r = first; r < first + rows; r += height) {
            const int part = std::min(height, first + rows - r);
            Tile scores;
            float faded[TILE_ROWS];
            multiply<E>(&state.queries[r], part, keys, panels, dim_ / E::PER_WORD, scores, keys[0]);
            for (int i = 0; i < part; ++i)
                faded[i] = weigh(state, r + i, scores.at[i], count);
            for (int d = 0; d < dim_; d += 4 * LANES)
                gather(part, std::min(4, (dim_ - d) / LANES), values, d, count, scores, faded,
                       state.sum.get() + static_cast<size_t>(r) * dim_ + d);
        }
    }

    // Turn a row's scores into weights, in E's words; returns by how much its earlier weights
    // fade.
    float weigh(Attending& state, int row, float* scores, int count) const {
        const Vec scale = _mm512_set1_ps(scale_), never = _mm512_set1_ps(-INFINITY);
        Vec s[TILE_PANELS];
        Vec most = never;
        for (int p = 0; p < TILE_PANELS; ++p) {
            const int left = std::clamp(count - p * LANES, 0, LANES);
            s[p] = left == 0 ? never
                             : _mm512_mask_mul_ps(never, first_lanes(left),
                                                  _mm512_load_ps(scores + p * LANES), scale);
            most = _mm512_max_ps(s[p], most);
        }
        const float before = state.highest[row];
        const float highest = std::max(before, _mm512_reduce_max_ps(most));
        state.highest[row] = highest;
        const Vec top = _mm512_set1_ps(highest);
        for (int p = 0; p < TILE_PANELS; ++p) {
            const int left = std::clamp(count - p * LANES, 0, LANES);
            s[p] = left == 0 ? _mm512_setzero_ps()
                             : _mm512_maskz_mov_ps(first_lanes(left), exp(_mm512_sub_ps(s[p], top)));
            E::store(reinterpret_cast<Storage*>(scores) + p * LANES, s[p]);
        }
        const Vec faded = exp(_mm512_sub_ps(_mm512_set1_ps(before), top));
        float* total = state.total.get() + static_cast<size_t>(row) * LANES;
        const Vec weights = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
        _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_load_ps(total), faded, weights));
        return _mm512_cvtss_f32(faded);
    }

    template <int ROWS, int VECS>
    void gather_exactly(const Word* const* values, int d, int count, const Tile& weights,
                        const float* faded, float* sum) const {
        constexpr int PANEL_WORDS = PANEL_TOKENS / E::PER_WORD;
        Vec acc[ROWS][VECS];
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECS; ++v)
                acc[r][v] = _mm512_mul_ps(_mm512_load_ps(sum + r * dim_ + v * LANES),
                                          _mm512_set1_ps(faded[r]));
        const auto add = [&](int word, int parts) __attribute__((always_inline)) {
            const Word* value = values[word / PANEL_WORDS] + word % PANEL_WORDS * dim_ + d;
            __m512i x[VECS];
#pragma GCC unroll 4
            for (int v = 0; v < VECS; ++v)
                x[v] = E::first_parts(_mm512_loadu_si512(value + v * LANES), parts);
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; ++r) {
                const Word* row = reinterpret_cast<const Word*>(weights.at[r]);
                const __m512i weight = _mm512_set1_epi32(static_cast<int>(row[word]));
#pragma GCC unroll 4
                for (int v = 0; v < VECS; ++v) acc[r][v] = E::dot(acc[r][v], weight, x[v]);
            }
        };
        for (int word = 0; word < count / E::PER_WORD; ++word) add(word, E::PER_WORD);
        // Behind the last key may lie anything, and nothing times no number is no number.
        if (const int rest = count % E::PER_WORD; rest != 0) add(count / E::PER_WORD, rest);
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECS; ++v) _mm512_store_ps(sum + r * dim_ + v * LANES, acc[r][v]);
    }

    // Add to each row's sum the weighted values' elements from d on.
    void gather(int rows, int vecs, const Word* const* values, int d, int count,
                const Tile& weights, const float* faded, float* sum) const {
        using Method = void (Attention::*)(const Word* const*, int, int, const Tile&,
                                           const float*, float*) const;
        static constexpr Method table[TILE_ROWS][4] = {
#define TIDEGATE_ROW(r)                                                          \
    {&Attention::gather_exactly<r, 1>, &Attention::gather_exactly<r, 2>,         \
     &Attention::gather_exactly<r, 3>, &Attention::gather_exactly<r, 4>}
            TIDEGATE_ROW(1), TIDEGATE_ROW(2), TIDEGATE_ROW(3),
            TIDEGATE_ROW(4), TIDEGATE_ROW(5), TIDEGATE_ROW(6),
#undef TIDEGATE_ROW
        };
        (this->*table[rows - 1][vecs - 1])(values, d, count, weights, faded, sum);
    }

    void finish(Attending& state, int row, Storage* out) const {
        const float total =
            _mm512_reduce_add_ps(_mm512_load_ps(state.total.get() + static_cast<size_t>(row) * LANES));
        const float* sum = state.sum.get() + static_cast<size_t>(row) * dim_;
        for (int d = 0; d < dim_; d += LANES)
            E::store(out + d, _mm512_div_ps(_mm512_load_ps(sum + d), _mm512_set1_ps(total)));
    }

    int query_heads_;
    int heads_;
    int group_;
    int dim_;
    float scale_;
    int rows_;  // of positions that a task takes together
};

}  // namespace tidegate
