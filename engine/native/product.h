// The product of rows and panels, and what is made of it: linear layers and attention.
//
// A panel is sixteen columns of a matrix, word by word along the sum: its word k holds the
// columns' k-th words side by side. Each element of a product is one chain of multiply-adds
// along k, whatever rows and panels are computed beside it: that is all it takes for the
// same bits in any batch.
#pragma once

#include "simd.h"

namespace tidegate {

inline constexpr int TILE_PANELS = 4;
inline constexpr int TILE_COLUMNS = TILE_PANELS * LANES;

// The sums of a tile, row after row.
template <int ROWS>
struct Tile {
    alignas(64) float at[ROWS][TILE_COLUMNS];
};

// What a product is made of. While it is made, memory that will be needed next is brought
// nearer: panels from `next` on, or what follows the own ones where they are read this `once`.
struct Product {
    const Word* rows;
    int64_t stride;  // words from one row to the next
    int row_count;
    const Word* const* panels;
    int panel_count;
    int words;
    const Word* next;
    int next_panels;
    bool once;
};

inline constexpr int PANEL_TOKENS = LANES;
inline constexpr int TILE_KEYS = TILE_COLUMNS;

// What some rows see of a tile of keys. Values lie in panels of sixteen tokens, [words of
// tokens][dim]: like a product's panels, they hold what is summed word by word.
struct Seen {
    const float (*weights)[TILE_COLUMNS];  // [rows], each a row of words
    const float* faded;                    // [rows] what becomes of their earlier sums
    int rows;
    const Word* const* values;             // [panels]
    int count;                             // of keys
    int dim;
};

// Rows of about equal height, as few as `most` allows.
inline int tile_height(int rows, int most) {
    const int tiles = (rows + most - 1) / most;
    return (rows + tiles - 1) / tiles;
}

}  // namespace tidegate
