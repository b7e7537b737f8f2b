// Lanes: products by vector instructions, sixteen columns at a time.
#pragma once

#include <algorithm>

#include "product.h"

namespace tidegate {

template <class E>
class Lanes {
  public:
    static constexpr int ROWS = 6;  // with 4 panels: 24 sums, 4 panels' words, 1 row's word
    static constexpr int HEIGHT = ROWS;    // of what attends together
    static constexpr int BLOCK_ROWS = 96;  // of a task: they stay in the second-level cache

    // out[r][c] = sum over k of row r's word k * column c's.
    void multiply(const Product& product, Tile<ROWS>& out) { add(product, 0, out.at); }

    // The same from word `begin` on, added to what is there unless that is 0.
    static void add(const Product& product, int begin, float (*out)[TILE_COLUMNS]) {
        using Function = void (*)(const Product&, int, float (*)[TILE_COLUMNS]);
        static constexpr Function table[ROWS][TILE_PANELS] = {
#define TIDEGATE_ROW(r) {add_exactly<r, 1>, add_exactly<r, 2>, add_exactly<r, 3>, add_exactly<r, 4>}
            TIDEGATE_ROW(1), TIDEGATE_ROW(2), TIDEGATE_ROW(3),
            TIDEGATE_ROW(4), TIDEGATE_ROW(5), TIDEGATE_ROW(6),
#undef TIDEGATE_ROW
        };
        table[product.row_count - 1][product.panel_count - 1](product, begin, out);
    }

    // sums [rows][dim] = faded * sums + weights * values.
    static void gather(const Seen& seen, float* sums) {
        using Function = void (*)(const Seen&, int, float*);
        static constexpr Function table[ROWS][4] = {
#define TIDEGATE_ROW(r) \
    {gather_exactly<r, 1>, gather_exactly<r, 2>, gather_exactly<r, 3>, gather_exactly<r, 4>}
            TIDEGATE_ROW(1), TIDEGATE_ROW(2), TIDEGATE_ROW(3),
            TIDEGATE_ROW(4), TIDEGATE_ROW(5), TIDEGATE_ROW(6),
#undef TIDEGATE_ROW
        };
        for (int d = 0; d < seen.dim; d += 4 * LANES)
            table[seen.rows - 1][std::min(4, (seen.dim - d) / LANES) - 1](seen, d, sums + d);
    }

  private:
    static constexpr int AHEAD = 1024;  // words

    template <int COUNT, int PANELS>
    __attribute__((noinline)) static void add_exactly(const Product& product, int begin,
                                                  float (*out)[TILE_COLUMNS]) {
        Vec sum[COUNT][PANELS];
        for (int r = 0; r < COUNT; ++r)
            for (int p = 0; p < PANELS; ++p)
                sum[r][p] = begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(&out[r][p * LANES]);
        const Word* row[COUNT];
        for (int r = 0; r < COUNT; ++r) row[r] = product.rows + r * product.stride;
        const Word* panel[PANELS];
        for (int p = 0; p < PANELS; ++p) panel[p] = product.panels[p];
        for (int64_t k = begin; k < product.words; ++k) {
            if (COUNT > 2 && product.next_panels > 0)
                _mm_prefetch(product.next + k * LANES, _MM_HINT_T1);
            __m512i w[PANELS];
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; ++p) {
                w[p] = _mm512_load_si512(panel[p] + k * LANES);
                if (COUNT <= 2) _mm_prefetch(panel[p] + k * LANES + AHEAD, _MM_HINT_T0);
            }
#pragma GCC unroll 6
            for (int r = 0; r < COUNT; ++r) {
                const __m512i a = _mm512_set1_epi32(static_cast<int>(row[r][k]));
#pragma GCC unroll 4
                for (int p = 0; p < PANELS; ++p) sum[r][p] = E::dot(sum[r][p], a, w[p]);
            }
        }
        for (int r = 0; r < COUNT; ++r)
            for (int p = 0; p < PANELS; ++p) _mm512_store_ps(&out[r][p * LANES], sum[r][p]);
    }

    template <int COUNT, int VECS>
    static void gather_exactly(const Seen& seen, int d, float* sums) {
        constexpr int PANEL_WORDS = PANEL_TOKENS / E::PER_WORD;
        Vec acc[COUNT][VECS];
        for (int r = 0; r < COUNT; ++r)
            for (int v = 0; v < VECS; ++v)
                acc[r][v] = _mm512_mul_ps(_mm512_load_ps(sums + r * seen.dim + v * LANES),
                                          _mm512_set1_ps(seen.faded[r]));
        const auto add = [&](int word, int parts) __attribute__((always_inline)) {
            const Word* value =
                seen.values[word / PANEL_WORDS] + word % PANEL_WORDS * seen.dim + d;
            __m512i x[VECS];
#pragma GCC unroll 4
            for (int v = 0; v < VECS; ++v)
                x[v] = E::first_parts(_mm512_loadu_si512(value + v * LANES), parts);
#pragma GCC unroll 6
            for (int r = 0; r < COUNT; ++r) {
                const Word* row = reinterpret_cast<const Word*>(seen.weights[r]);
                const __m512i weight = _mm512_set1_epi32(static_cast<int>(row[word]));
#pragma GCC unroll 4
                for (int v = 0; v < VECS; ++v) acc[r][v] = E::dot(acc[r][v], weight, x[v]);
            }
        };
        for (int word = 0; word < seen.count / E::PER_WORD; ++word) add(word, E::PER_WORD);
        // Behind the last key may lie anything, and nothing times no number is no number.
        if (const int rest = seen.count % E::PER_WORD; rest != 0)
            add(seen.count / E::PER_WORD, rest);
        for (int r = 0; r < COUNT; ++r)
            for (int v = 0; v < VECS; ++v)
                _mm512_store_ps(sums + r * seen.dim + v * LANES, acc[r][v]);
    }
};

}  // namespace tidegate
