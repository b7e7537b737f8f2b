// The product of rows and panels: what linear layers and attention scores are made of.
//
// A panel is sixteen columns of a matrix, word by word along the sum: its word k holds the
// columns' k-th words side by side. Each element of a product is one chain of multiply-adds
// along k, whatever rows and panels are computed beside it: that is all it takes for the
// same bits in any batch.
#pragma once

#include "simd.h"

namespace tidegate {

inline constexpr int TILE_ROWS = 6;  // with 4 panels: 24 sums, 4 panels' words, 1 row's word
inline constexpr int TILE_PANELS = 4;
inline constexpr int TILE_COLUMNS = TILE_PANELS * LANES;

// The sums of a tile, row after row.
struct Tile {
    alignas(64) float at[TILE_ROWS][TILE_COLUMNS];
};

template <class E, int ROWS, int PANELS>
__attribute__((noinline)) void multiply_exactly(const Word* const* rows,
                                                const Word* const* panels, int words, Tile& out,
                                                const Word* next) {
    Vec sum[ROWS][PANELS];
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) sum[r][p] = _mm512_setzero_ps();
    const Word* row[ROWS];
    for (int r = 0; r < ROWS; ++r) row[r] = rows[r];
    const Word* panel[PANELS];
    for (int p = 0; p < PANELS; ++p) panel[p] = panels[p];
    for (int64_t k = 0; k < words; ++k) {
        if (ROWS > 2) _mm_prefetch(next + k * LANES, _MM_HINT_T1);
        __m512i w[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; ++p) {
            w[p] = _mm512_load_si512(panel[p] + k * LANES);
            if (ROWS <= 2) _mm_prefetch(panel[p] + k * LANES + 1024, _MM_HINT_T0);
        }
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) {
            const __m512i a = _mm512_set1_epi32(static_cast<int>(row[r][k]));
#pragma GCC unroll 4
            for (int p = 0; p < PANELS; ++p) sum[r][p] = E::dot(sum[r][p], a, w[p]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PANELS; ++p) _mm512_store_ps(&out.at[r][p * LANES], sum[r][p]);
}

// out[r][c] = sum over k of rows[r][k] * column c; up to TILE_ROWS rows and TILE_PANELS panels.
// Meanwhile a panel that will be needed next is brought nearer, unless reading the own ones is
// all that memory can do.
template <class E>
void multiply(const Word* const* rows, int row_count, const Word* const* panels, int panel_count,
              int words, Tile& out, const Word* next) {
    using Function = void (*)(const Word* const*, const Word* const*, int, Tile&, const Word*);
    static constexpr Function table[TILE_ROWS][TILE_PANELS] = {
#define TIDEGATE_ROW(r)                                                        \
    {multiply_exactly<E, r, 1>, multiply_exactly<E, r, 2>, multiply_exactly<E, r, 3>, \
     multiply_exactly<E, r, 4>}
        TIDEGATE_ROW(1), TIDEGATE_ROW(2), TIDEGATE_ROW(3),
        TIDEGATE_ROW(4), TIDEGATE_ROW(5), TIDEGATE_ROW(6),
#undef TIDEGATE_ROW
    };
    table[row_count - 1][panel_count - 1](rows, panels, words, out, next);
}

// Rows of about equal height, as few as TILE_ROWS allows.
inline int tile_height(int rows) {
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    return (rows + tiles - 1) / tiles;
}

}  // namespace tidegate
