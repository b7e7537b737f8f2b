// The library's interface: plain C, so that it needs neither Python's headers nor torch's.
//
// Functions return nullptr or false when memory ran out. A decoder is for one caller at a time.
#include <new>

#include "choice.h"
#include "decoder.h"

namespace {

using namespace tidegate;

// Which tensor of a layer is set; the same numbers as in decoder.py.
enum Part : int32_t { Q, K, V, OUT, GATE, UP, DOWN, NORM_IN, NORM_MLP, NORM_Q, NORM_K };

// What a decoder computes with; the same numbers as in library.py.
enum Element : int32_t { FLOAT32, BFLOAT16, MATRIX_BFLOAT16 };

class AnyDecoder {
  public:
    virtual ~AnyDecoder() = default;
    virtual void set(int layer, int part, const void* weight, const float* bias) = 0;
    virtual void set_ends(const void* embedding, const void* head, const float* bias,
                          const float* norm, const float* cos, const float* sin) = 0;
    virtual void hidden(void* pool, int64_t layer_bytes, const Step& step, void* out) = 0;
    virtual void logits(const void* hidden, const int32_t* rows, int count, float* out) = 0;
    virtual Team& team() = 0;
};

template <class E>
class DecoderOf : public AnyDecoder {
  public:
    DecoderOf(const Shape& shape, int threads) : decoder_(shape, threads) {}

    void set(int index, int part, const void* weight, const float* bias) override {
        const Shape& s = decoder_.shape();
        Layer<E>& layer = decoder_.layer(index);
        const int q = s.query_heads * s.dim, k = s.heads * s.dim;
        const auto from = [](int first) { return [=](int i) { return first / LANES + i; }; };
        switch (part) {
            case Q: return fill(layer.qkv, q, s.hidden, weight, bias, from(0));
            case K: return fill(layer.qkv, k, s.hidden, weight, bias, from(q));
            case V: return fill(layer.qkv, k, s.hidden, weight, bias, from(q + k));
            case OUT: return fill(layer.out, s.hidden, q, weight, bias, from(0));
            case GATE:
                return fill(layer.gate_up, s.inner, s.hidden, weight, bias, Layer<E>::gate_panel);
            case UP: return fill(layer.gate_up, s.inner, s.hidden, weight, bias, Layer<E>::up_panel);
            case DOWN: return fill(layer.down, s.hidden, s.inner, weight, bias, from(0));
            case NORM_IN: return copy(layer.norm_in, weight, s.hidden);
            case NORM_MLP: return copy(layer.norm_mlp, weight, s.hidden);
            case NORM_Q: return copy(layer.norm_q, weight, s.dim);
            case NORM_K: return copy(layer.norm_k, weight, s.dim);
        }
    }

    void set_ends(const void* embedding, const void* head, const float* bias, const float* norm,
                  const float* cos, const float* sin) override {
        const Shape& s = decoder_.shape();
        const auto* from = static_cast<const typename E::Storage*>(embedding);
        decoder_.embedding.assign(from, from + static_cast<size_t>(s.vocab) * s.hidden);
        fill(decoder_.head(), s.vocab, s.hidden, head, bias, [](int i) { return i; });
        copy(decoder_.norm_out, norm, s.hidden);
        copy(decoder_.cos, cos, static_cast<size_t>(s.positions) * s.dim / 2);
        copy(decoder_.sin, sin, static_cast<size_t>(s.positions) * s.dim / 2);
    }

    void hidden(void* pool, int64_t layer_bytes, const Step& step, void* out) override {
        decoder_.hidden(pool, layer_bytes, step, static_cast<typename E::Storage*>(out));
    }

    void logits(const void* hidden, const int32_t* rows, int count, float* out) override {
        decoder_.logits(static_cast<const typename E::Storage*>(hidden), rows, count, out);
    }

    Team& team() override { return decoder_.team(); }

  private:
    // panel(i): where the i-th sixteen outputs go.
    template <class Panel>
    static void fill(Linear<E>& linear, int outputs, int inputs, const void* weight,
                     const float* bias, const Panel& panel) {
        const auto* row = static_cast<const typename E::Storage*>(weight);
        for (int i = 0; i < outputs; i += LANES)
            linear.set(panel(i / LANES), row + static_cast<size_t>(i) * inputs, inputs,
                       std::min(LANES, outputs - i), bias == nullptr ? nullptr : bias + i);
    }
    static void copy(std::vector<float>& to, const void* from, size_t count) {
        to.assign(static_cast<const float*>(from), static_cast<const float*>(from) + count);
    }

    Decoder<E> decoder_;
};

template <class Work>
bool succeeds(const Work& work) {
    try {
        work();
        return true;
    } catch (const std::exception&) {  // of memory, or of threads, there are too few
        return false;
    }
}

}  // namespace

extern "C" {

// Whether this process may use the processor's matrix unit; to be asked before a decoder is
// made that does.
bool tidegate_matrix_unit() {
#ifdef TIDEGATE_MATRIX_UNIT
    return MatrixUnit::request();
#else
    return false;
#endif
}

AnyDecoder* tidegate_decoder(const Shape* shape, Element element, int threads) {
    AnyDecoder* made = nullptr;
    succeeds([&] {
        switch (element) {
            case FLOAT32: made = new DecoderOf<Float32>(*shape, threads); break;
            case BFLOAT16: made = new DecoderOf<BFloat16>(*shape, threads); break;
            case MATRIX_BFLOAT16:
#ifdef TIDEGATE_MATRIX_UNIT
                made = new DecoderOf<MatrixBFloat16>(*shape, threads);
#endif
                break;
        }
    });
    return made;
}

void tidegate_free(AnyDecoder* decoder) { delete decoder; }

// weight: [outputs][inputs] of the decoder's element type, float32 for a norm; bias: float32
// or nullptr.
bool tidegate_set(AnyDecoder* decoder, int layer, int part, const void* weight, const float* bias) {
    return succeeds([&] { decoder->set(layer, part, weight, bias); });
}

bool tidegate_set_ends(AnyDecoder* decoder, const void* embedding, const void* head,
                       const float* bias, const float* norm, const float* cos, const float* sin) {
    return succeeds([&] { decoder->set_ends(embedding, head, bias, norm, cos, sin); });
}

bool tidegate_hidden(AnyDecoder* decoder, void* pool, int64_t layer_bytes, const Step* step,
                     void* out) {
    return succeeds([&] { decoder->hidden(pool, layer_bytes, *step, out); });
}

bool tidegate_logits(AnyDecoder* decoder, const void* hidden, const int32_t* rows, int count,
                     float* out) {
    return succeeds([&] { decoder->logits(hidden, rows, count, out); });
}

// The largest of each row of logits [rows][vocab], and the first token that has it.
void tidegate_largest(AnyDecoder* decoder, const float* logits, int rows, int vocab, float* values,
                      int32_t* tokens) {
    Team& team = decoder->team();
    const Team::Awake awake(team);
    team.run(rows, [&](int row, int) {
        const Top top = largest(logits + static_cast<size_t>(row) * vocab, vocab);
        values[row] = top.value;
        tokens[row] = top.token;
    });
}

// A draw from one row of logits; the same fields as in library.py.
struct Draw {
    const float* row;
    uint64_t key;
    Filter filter;
    double temperature;
};

// The tokens that could win each draw: counts [draws], and as many tokens for each, at most
// `room` of them altogether; returns how many there are, -1 if memory ran out.
int64_t tidegate_candidates(AnyDecoder* decoder, const Draw* draws, int count, int vocab,
                            int32_t* counts, int32_t* tokens, int64_t room) {
    int64_t total = 0;
    const bool done = succeeds([&] {
        std::vector<std::vector<int32_t>> found(count);
        std::atomic<bool> full{false};
        Team& team = decoder->team();
        const Team::Awake awake(team);
        team.run(count, [&](int i, int) {
            const Draw& d = draws[i];
            // What is thrown in another thread's task would end the process.
            const bool done = succeeds([&] {
                const float top = largest(d.row, vocab).value;
                const Limit limit = Limiter(d.row, vocab, top, d.temperature).find(d.filter);
                candidates(d.row, vocab, top, d.temperature, d.key, limit, found[i]);
            });
            if (!done) full.store(true);
        });
        if (full.load()) throw std::bad_alloc();
        for (int i = 0; i < count; ++i) {
            counts[i] = static_cast<int32_t>(found[i].size());
            if (total + counts[i] <= room)
                std::copy(found[i].begin(), found[i].end(), tokens + total);
            total += counts[i];
        }
    });
    return done ? total : -1;
}
}
