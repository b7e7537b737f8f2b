// Products of bfloat16 by the processor's matrix unit (Intel AMX), where it has one.
//
// One instruction adds to sixteen sums of sixteen rows the products of sixteen words. What a
// row's sums become does not depend on the other rows, nor on how many they are, so a row's
// bits depend on the row alone, as with vector instructions; they are other bits than those.
#pragma once

#include "lanes.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define TIDEGATE_MATRIX_UNIT

#include <sys/syscall.h>
#include <unistd.h>

namespace tidegate {

// bfloat16 that the matrix unit multiplies.
struct MatrixBFloat16 : BFloat16 {};

// The unit of one thread, for as long as this lives.
class MatrixUnit {
  public:
    static constexpr int ROWS = 32;
    static constexpr int HEIGHT = 16;       // of what attends together: one register's rows
    static constexpr int BLOCK_ROWS = 256;  // of a task: as many as share what it reads of a weight

    // Ask the system for room to keep the unit's state in, for all threads of the process.
    static bool request() {
        constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM
        return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    }

    MatrixUnit() = default;
    MatrixUnit(const MatrixUnit&) = delete;
    MatrixUnit& operator=(const MatrixUnit&) = delete;
    ~MatrixUnit() {
        if (rows_ != 0) _tile_release();
    }

    // out[r][c] = sum over k of row r's word k * column c's.
    void multiply(const Product& product, Tile<ROWS>& out) {
        const int whole = product.words / DEPTH * DEPTH;
        if (whole > 0) {
            use(product.row_count);
            if (product.once)
                for (int p = 0; p < product.panel_count; ++p) stream(product, p, whole, out);
            else if (product.row_count <= HEIGHT)
                flat(product, whole, out);
            else
                for (int p = 0; p < product.panel_count; p += 2) tall(product, p, whole, out);
        }
        if (whole == product.words) return;
        // What is left over is less than the unit takes at once.
        Product rest = product;
        for (int r = 0; r < product.row_count; r += Lanes<BFloat16>::ROWS) {
            rest.rows = product.rows + r * product.stride;
            rest.row_count = std::min(Lanes<BFloat16>::ROWS, product.row_count - r);
            Lanes<BFloat16>::add(rest, whole, &out.at[r]);
        }
    }

    // sums [rows][dim] = faded * sums + weights * values.
    void gather(const Seen& seen, float* sums) {
        // A tile that is seen in part ends where the row does, so how it is seen follows from
        // the row's position.
        if (seen.count < TILE_KEYS) return gather_part(seen, sums);
        for (int r = 0; r < seen.rows; ++r)
            for (float* at = sums + r * seen.dim; at < sums + (r + 1) * seen.dim; at += LANES)
                _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at),
                                                  _mm512_set1_ps(seen.faded[r])));
        use(seen.rows);
        settle();
        for (int d = 0; d < seen.dim; d += TILE_COLUMNS)
            switch ((seen.dim - d) / LANES) {
                case 1: gather_whole<1>(seen, d, sums + d); break;
                case 2: gather_whole<2>(seen, d, sums + d); break;
                case 3: gather_whole<3>(seen, d, sums + d); break;
                default: gather_whole<4>(seen, d, sums + d);
            }
    }

  private:
    static constexpr int DEPTH = 16;     // words of a row of a tile register
    static constexpr int HALF_DEPTH = 8;
    static constexpr int AHEAD = 128;    // words of a panel

    // As the instruction that loads it wants it.
    struct alignas(64) Configuration {
        uint8_t palette = 1;
        uint8_t start = 0;
        uint8_t reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    };

    // Set the registers' shapes for so many rows of a product: up to 16 are one register high
    // (sums 0 to 3, rows 4, their half 5, a panel 6, its half 7), more are two (sums 0 and 1 of
    // rows 4, 2 and 3 of rows 5, panels 6 and 7).
    void use(int rows) {
        if (rows == rows_) return;
        rows_ = rows;
        Configuration c;
        const bool flat = rows <= HEIGHT;
        const int first = flat ? rows : HEIGHT, second = flat ? rows : rows - HEIGHT;
        const int heights[8] = {first,  first, second, second,
                                first,  second, DEPTH, flat ? HALF_DEPTH : DEPTH};
        for (int i = 0; i < 8; ++i) {
            c.rows[i] = static_cast<uint8_t>(heights[i]);
            c.row_bytes[i] = 4 * (flat && i == 5 ? HALF_DEPTH : DEPTH);
        }
        asm volatile("" ::"r"(&c) : "memory");
        _tile_loadconfig(&c);
    }

    // The compiler does not know what a register is loaded from: all stores to there come first.
    static void settle() { asm volatile("" ::: "memory"); }

    static void clear_sums() {
        settle();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    static void bring(const Product& product, int64_t k) {
        for (int p = 0; p < product.next_panels; ++p) {
            const Word* from = product.next + (static_cast<int64_t>(p) * product.words + k) * LANES;
            for (int i = 0; i < DEPTH; ++i) _mm_prefetch(from + i * LANES, _MM_HINT_T1);
        }
    }

    // One panel, read as fast as memory gives it; the next panel follows it in memory.
    static void stream(const Product& product, int p, int words, Tile<ROWS>& out) {
        const int64_t stride = product.stride * sizeof(Word);
        const Word *upper = product.rows, *lower = product.rows + HEIGHT * product.stride;
        const bool two = product.row_count > HEIGHT;
        const bool last = p + 1 == product.panel_count;
        clear_sums();
        for (int64_t k = 0; k < words; k += DEPTH) {
            const Word* from = product.panels[p] + k * LANES;
            const int64_t beyond = k + AHEAD - product.words;
            const Word* ahead = last && beyond >= 0 ? product.next + beyond * LANES : from + AHEAD * LANES;
            for (int i = 0; i < DEPTH; ++i) _mm_prefetch(ahead + i * LANES, _MM_HINT_T0);
            _tile_loadd(6, from, 64);
            _tile_loadd(4, upper + k, stride);
            _tile_dpbf16ps(0, 4, 6);
            if (!two) continue;
            _tile_loadd(5, lower + k, stride);
            _tile_dpbf16ps(2, 5, 6);
        }
        _tile_stored(0, &out.at[0][p * LANES], sizeof out.at[0]);
        if (two) _tile_stored(2, &out.at[HEIGHT][p * LANES], sizeof out.at[0]);
    }

    void flat(const Product& product, int words, Tile<ROWS>& out) {
        switch (product.panel_count) {
            case 1: return flat<1>(product, words, out);
            case 2: return flat<2>(product, words, out);
            case 3: return flat<3>(product, words, out);
            default: return flat<4>(product, words, out);
        }
    }

    template <int PANELS>
    static void flat(const Product& product, int words, Tile<ROWS>& out) {
        const Word* const* panels = product.panels;
        const int64_t stride = product.stride * sizeof(Word);
        clear_sums();
        for (int64_t k = 0; k < words; k += DEPTH) {
            bring(product, k);
            _tile_loadd(4, product.rows + k, stride);
#define TIDEGATE_PANEL(p)                               \
    if constexpr (PANELS > p) {                         \
        _tile_loadd(6, panels[p] + k * LANES, 64);      \
        _tile_dpbf16ps(p, 4, 6);                        \
    }
            TIDEGATE_PANEL(0) TIDEGATE_PANEL(1) TIDEGATE_PANEL(2) TIDEGATE_PANEL(3)
#undef TIDEGATE_PANEL
        }
#define TIDEGATE_PANEL(p) \
    if constexpr (PANELS > p) _tile_stored(p, &out.at[0][p * LANES], sizeof out.at[0]);
        TIDEGATE_PANEL(0) TIDEGATE_PANEL(1) TIDEGATE_PANEL(2) TIDEGATE_PANEL(3)
#undef TIDEGATE_PANEL
    }

    // Panels p and, if there is one, p + 1.
    static void tall(const Product& product, int p, int words, Tile<ROWS>& out) {
        const int64_t stride = product.stride * sizeof(Word);
        const Word *upper = product.rows, *lower = product.rows + HEIGHT * product.stride;
        const bool two = p + 1 < product.panel_count;
        const Word *left = product.panels[p], *right = product.panels[two ? p + 1 : p];
        clear_sums();
        for (int64_t k = 0; k < words; k += DEPTH) {
            if (p == 0) bring(product, k);
            _tile_loadd(6, left + k * LANES, 64);
            _tile_loadd(4, upper + k, stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, lower + k, stride);
            _tile_dpbf16ps(2, 5, 6);
            if (!two) continue;
            _tile_loadd(7, right + k * LANES, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, &out.at[0][p * LANES], sizeof out.at[0]);
        _tile_stored(2, &out.at[HEIGHT][p * LANES], sizeof out.at[0]);
        if (!two) return;
        _tile_stored(1, &out.at[0][(p + 1) * LANES], sizeof out.at[0]);
        _tile_stored(3, &out.at[HEIGHT][(p + 1) * LANES], sizeof out.at[0]);
    }

    static void gather_part(const Seen& seen, float* sums) {
        Seen part = seen;
        for (int r = 0; r < seen.rows; r += part.rows) {
            part.rows = std::min(Lanes<BFloat16>::ROWS, seen.rows - r);
            part.weights = seen.weights + r;
            part.faded = seen.faded + r;
            Lanes<BFloat16>::gather(part, sums + r * seen.dim);
        }
    }

    template <int VECS>
    static void gather_whole(const Seen& seen, int d, float* sums) {
        const int64_t row = seen.dim * sizeof(float);
#define TIDEGATE_VEC(v) \
    if constexpr (VECS > v) _tile_loadd(v, sums + v * LANES, row);
        TIDEGATE_VEC(0) TIDEGATE_VEC(1) TIDEGATE_VEC(2) TIDEGATE_VEC(3)
#undef TIDEGATE_VEC
        for (int p = 0; p < TILE_PANELS; ++p) {
            _tile_loadd(5, &seen.weights[0][p * HALF_DEPTH], sizeof seen.weights[0]);
            const Word* from = seen.values[p] + d;
#define TIDEGATE_VEC(v)                        \
    if constexpr (VECS > v) {                  \
        _tile_loadd(7, from + v * LANES, row); \
        _tile_dpbf16ps(v, 5, 7);               \
    }
            TIDEGATE_VEC(0) TIDEGATE_VEC(1) TIDEGATE_VEC(2) TIDEGATE_VEC(3)
#undef TIDEGATE_VEC
        }
#define TIDEGATE_VEC(v) \
    if constexpr (VECS > v) _tile_stored(v, sums + v * LANES, row);
        TIDEGATE_VEC(0) TIDEGATE_VEC(1) TIDEGATE_VEC(2) TIDEGATE_VEC(3)
#undef TIDEGATE_VEC
    }

    int rows_ = 0;  // that the registers are shaped for
};

}  // namespace tidegate
#endif
