// Decoder: all layers of a Llama-like model, one call a step.
#pragma once

#include <stdexcept>

#include "attention.h"
#include "elementwise.h"

namespace tidegate {

struct Shape {
    int32_t layers;
    int32_t hidden;
    int32_t inner;  // width of the MLP
    int32_t query_heads;
    int32_t heads;
    int32_t dim;
    int32_t vocab;
    int32_t positions;     // rows of the rotation tables
    int32_t block_tokens;
    int32_t head_norms;    // queries and keys are normed head by head (Qwen 3)
    float eps;
    float scale;
};

template <class E>
struct Layer {
    Linear<E> qkv, out, gate_up, down;
    std::vector<float> norm_in, norm_mlp, norm_q, norm_k;

    Layer(Arena& memory, const Shape& s)
        : qkv(memory, (s.query_heads + 2 * s.heads) * s.dim, s.hidden),
          out(memory, s.hidden, s.query_heads * s.dim),
          gate_up(memory, 2 * padded(s.inner), s.hidden),
          down(memory, s.hidden, s.inner) {}

    // Gate and up lie in turn, two panels of each, so that one tile holds what belongs together.
    static int padded(int inner) { return (inner + 2 * LANES - 1) / (2 * LANES) * 2 * LANES; }
    static int gate_panel(int i) { return i / 2 * 4 + i % 2; }
    static int up_panel(int i) { return gate_panel(i) + 2; }
};

// One step's rows.
struct Step {
    int32_t rows;
    int32_t segments;
    const int32_t* tokens;     // [rows]
    const int32_t* positions;  // [rows]
    const int32_t* starts;     // [segments]
    const int32_t* lengths;    // [segments]
    const int32_t* const* tables;  // [segments] block ids
};

template <class E>
class Decoder {
  public:
    using Storage = typename E::Storage;

    Decoder(const Shape& shape, int threads)
        : shape_(shape), attention_(shape.query_heads, shape.heads, shape.dim, shape.scale),
          head_(weights_, shape.vocab, shape.hidden), team_(threads), scratch_(team_.threads()) {
        for (int i = 0; i < shape.layers; ++i) layers_.emplace_back(weights_, shape);
    }

    Layer<E>& layer(int i) { return layers_.at(i); }
    Linear<E>& head() { return head_; }
    const Shape& shape() const { return shape_; }
    std::vector<float> norm_out;
    std::vector<float> cos, sin;         // [positions][dim / 2]
    std::vector<Storage> embedding;      // [vocab][hidden]

    // Compute a step's K and V; hidden [rows][hidden words] is what the head takes.
    void hidden(void* pool, int64_t layer_bytes, const Step& step, Storage* out) {
        const int rows = step.rows;
        reserve(rows);
        segments_.clear();
        for (int i = 0, row = 0; i < step.segments; row += step.lengths[i++])
            segments_.push_back({row, step.starts[i], step.lengths[i], step.tables[i]});
        owner_.resize(rows);
        for (int i = 0; i < step.segments; ++i)
            std::fill_n(owner_.begin() + segments_[i].first_row, segments_[i].length, i);
        const Team::Awake awake(team_);
        by_row(rows, [&](int row) {
            const Storage* from = &embedding[static_cast<size_t>(step.tokens[row]) * shape_.hidden];
            float* to = x_row(row);
            for (int i = 0; i < shape_.hidden; ++i) to[i] = value(from[i]);
        });
        for (int i = 0; i < shape_.layers; ++i) {
            LayerPool<E> own(static_cast<char*>(pool) + i * layer_bytes, shape_.block_tokens,
                             shape_.heads, shape_.dim);
            attend(layers_[i], own, step);
            feed_forward(layers_[i], rows);
        }
        by_row(rows, [&](int row) {
            norm_row(row, norm_out,
                     reinterpret_cast<Word*>(out) + static_cast<size_t>(row) * words(shape_.hidden));
        });
    }

    // [rows][vocab] float32 logits of rows of hidden states.
    void logits(const Storage* hidden, const int32_t* rows, int count, float* out) {
        const int width = words(shape_.hidden);
        reserve(count);
        for (int i = 0; i < count; ++i)
            std::memcpy(normed_ + static_cast<size_t>(i) * width,
                        reinterpret_cast<const Word*>(hidden) + static_cast<size_t>(rows[i]) * width,
                        width * sizeof(Word));
        const Team::Awake awake(team_);
        const int vocab = shape_.vocab;
        head_.run(team_, {normed_, count, width}, 1,
                  [&](int r, int part, int panel, int panels, const auto& tile) {
            const int columns = std::min(panels * LANES, vocab - panel * LANES);
            for (int i = 0; i < part; ++i)
                std::memcpy(out + static_cast<size_t>(r + i) * vocab + panel * LANES, tile.at[i],
                            columns * sizeof(float));
        });
    }

    Team& team() { return team_; }

    static int words(int width) { return width / E::PER_WORD; }  // widths are even

  private:
    static float value(float x) { return x; }
    static float value(uint16_t x) {
        const uint32_t bits = static_cast<uint32_t>(x) << 16;
        float out;
        std::memcpy(&out, &bits, sizeof out);
        return out;
    }

    float* x_row(int row) { return x_ + static_cast<size_t>(row) * shape_.hidden; }

    template <class Each>
    void by_row(int rows, const Each& each) {
        const int part = std::max(1, std::min(16, rows / (4 * team_.threads())));
        team_.run((rows + part - 1) / part, [&](int task, int) {
            for (int row = task * part; row < std::min(rows, (task + 1) * part); ++row) each(row);
        });
    }

    void norm_row(int row, const std::vector<float>& weight, Word* to) {
        rms_norm<E>(x_row(row), weight.data(), shape_.hidden, shape_.eps,
                    reinterpret_cast<Storage*>(to));
    }

    Rows norm(int rows, const std::vector<float>& weight) {
        const int width = words(shape_.hidden);
        by_row(rows, [&](int row) {
            norm_row(row, weight, normed_ + static_cast<size_t>(row) * width);
        });
        return {normed_, rows, width};
    }

    // x += what a linear makes of some rows.
    void add(const Linear<E>& linear, const Rows& rows) {
        linear.run(team_, rows, 1, [&](int r, int part, int panel, int panels, const auto& tile) {
            for (int i = 0; i < part; ++i)
                for (int p = 0; p < panels; ++p) {
                    const int column = (panel + p) * LANES;
                    const int count = std::min(LANES, shape_.hidden - column);
                    float* to = x_row(r + i) + column;
                    Float32::store(to, _mm512_add_ps(Float32::load(to, count),
                                                     _mm512_load_ps(&tile.at[i][p * LANES])),
                                   count);
                }
        });
    }

    void attend(const Layer<E>& layer, const LayerPool<E>& pool, const Step& step) {
        const int rows = step.rows, width = (shape_.query_heads + 2 * shape_.heads) * shape_.dim;
        layer.qkv.run(team_, norm(rows, layer.norm_in), 1,
                      [&](int r, int part, int panel, int panels, const auto& tile) {
            for (int i = 0; i < part; ++i)
                std::memcpy(qkv_ + static_cast<size_t>(r + i) * width + panel * LANES,
                            tile.at[i], panels * LANES * sizeof(float));
        });
        by_row(rows, [&](int row) { place(layer, pool, step, row); });
        Storage* attended = reinterpret_cast<Storage*>(attended_);
        attention_.run(team_, scratch_, pool, segments_, reinterpret_cast<Storage*>(q_),
                       attended);
        add(layer.out, {attended_, rows, words(shape_.query_heads * shape_.dim)});
    }

    // Rotate a row's queries and keys; its keys and values go into the pool.
    void place(const Layer<E>& layer, const LayerPool<E>& pool, const Step& step, int row) {
        const int dim = shape_.dim, position = step.positions[row];
        const float* c = &cos[static_cast<size_t>(position) * (dim / 2)];
        const float* s = &sin[static_cast<size_t>(position) * (dim / 2)];
        float* from = qkv_ + static_cast<size_t>(row) * (shape_.query_heads + 2 * shape_.heads) * dim;
        Storage* q = reinterpret_cast<Storage*>(q_) +
                     static_cast<size_t>(row) * shape_.query_heads * dim;
        for (int h = 0; h < shape_.query_heads; ++h) {
            head_norm(layer.norm_q, from + h * dim);
            rotate<E>(from + h * dim, c, s, dim, q + h * dim);
        }
        float* keys = from + shape_.query_heads * dim;
        float* values = keys + shape_.heads * dim;
        const int32_t* table = segments_[owner_[row]].table;
        alignas(64) Storage key[MOST_DIM], value[MOST_DIM];
        for (int h = 0; h < shape_.heads; ++h) {
            head_norm(layer.norm_k, keys + h * dim);
            rotate<E>(keys + h * dim, c, s, dim, key);
            for (int i = 0; i < dim; i += LANES)
                E::store(value + i, _mm512_loadu_ps(values + h * dim + i));
            pool.write(table, position, h, key, value);
        }
    }

    void head_norm(const std::vector<float>& weight, float* head) const {
        if (shape_.head_norms)
            rms_norm<Float32>(head, weight.data(), shape_.dim, shape_.eps, head);
    }

    void feed_forward(const Layer<E>& layer, int rows) {
        const int inner = shape_.inner, width = words(inner);
        layer.gate_up.run(team_, norm(rows, layer.norm_mlp), 4,
                          [&](int r, int part, int panel, int, const auto& tile) {
            for (int i = 0; i < part; ++i)
                for (int p = 0; p < 2; ++p) {
                    const int column = (panel / 2 + p) * LANES;
                    const int count = std::min(LANES, inner - column);
                    if (count <= 0) continue;
                    Word* to = inner_ + static_cast<size_t>(r + i) * width;
                    const float* gate = &tile.at[i][p * LANES];
                    E::store(reinterpret_cast<Storage*>(to) + column,
                             gated(_mm512_load_ps(gate), _mm512_load_ps(gate + 2 * LANES)), count);
                }
        });
        add(layer.down, {inner_, rows, width});
    }

    void reserve(int rows) {
        if (rows <= capacity_) return;
        activations_.clear();
        capacity_ = 0;  // until all is there
        const size_t n = rows;
        x_ = activations_.take<float>(n * shape_.hidden);
        normed_ = activations_.take<Word>(n * words(shape_.hidden));
        qkv_ = activations_.take<float>(n * (shape_.query_heads + 2 * shape_.heads) * shape_.dim);
        q_ = activations_.take<Word>(n * words(shape_.query_heads * shape_.dim));
        attended_ = activations_.take<Word>(n * words(shape_.query_heads * shape_.dim));
        inner_ = activations_.take<Word>(n * words(shape_.inner));
        capacity_ = rows;
    }

  public:
    static constexpr int MOST_DIM = 256;

  private:
    Shape shape_;
    Attention<E> attention_;
    Arena weights_{16 * Arena::HUGE};
    std::vector<Layer<E>> layers_;
    Linear<E> head_;
    Team team_;
    std::vector<Attending> scratch_;
    std::vector<Segment> segments_;
    std::vector<int32_t> owner_;  // [rows] the segment of each row
    int capacity_ = 0;
    Arena activations_{Arena::SMALL};
    float *x_ = nullptr, *qkv_ = nullptr;
    Word *normed_ = nullptr, *q_ = nullptr, *attended_ = nullptr, *inner_ = nullptr;
};

}  // namespace tidegate
