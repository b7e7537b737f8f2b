// What choosing a token needs of a whole row of logits; the choice itself is made of little.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "simd.h"

namespace tidegate {

struct Top {
    float value;  // nan if there is one in the row
    int32_t token;  // the first that has the value; 0 if it is nan
};

inline Top largest(const float* row, int vocab) {
    Vec most = _mm512_set1_ps(-INFINITY);
    __mmask16 nan = 0;
    for (int i = 0; i < vocab; i += LANES) {
        const __mmask16 there = first_lanes(std::min(LANES, vocab - i));
        const Vec x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), there, row + i);
        nan |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        most = _mm512_max_ps(x, most);
    }
    if (nan != 0) return {std::numeric_limits<float>::quiet_NaN(), 0};
    const float value = _mm512_reduce_max_ps(most);
    const Vec top = _mm512_set1_ps(value);
    for (int i = 0; i < vocab; i += LANES) {
        const __mmask16 there = first_lanes(std::min(LANES, vocab - i));
        const __mmask16 found =
            _mm512_mask_cmp_ps_mask(there, _mm512_maskz_loadu_ps(there, row + i), top, _CMP_EQ_OQ);
        if (found != 0) return {value, i + __builtin_ctz(found)};
    }
    return {value, 0};
}

// SplitMix64's finaliser, eight at a time; engine/noise.py says what it is for.
inline __m512i mixed(__m512i x) {
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 30));
    x = _mm512_mullo_epi64(x, _mm512_set1_epi64(static_cast<int64_t>(0xBF58476D1CE4E5B9)));
    x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 27));
    x = _mm512_mullo_epi64(x, _mm512_set1_epi64(static_cast<int64_t>(0x94D049BB133111EB)));
    return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
}

// Gumbel noise of a token's 31 bits.
inline double gumbel(uint32_t bits) {
    const double v = std::min((bits + 0.5) * 0x1p-31, 1 - 0x1p-24);
    return -std::log(-std::log1p(-v));
}

// All tokens that could win the draw whose key is given, ascending; most often a few.
//
// The winner has the largest (logit - top) / temperature + noise. How large a token's noise
// can be shows in its bits' leading zeros, so nearly all are ruled out without a logarithm.
// Scores are estimated here, within a margin; whoever asks computes those of the candidates.
inline void candidates(const float* row, int vocab, Top top, float temperature, uint64_t key,
                       std::vector<int32_t>& out) {
    constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15;
    constexpr float MARGIN = 1e-3f, PER_ZERO = 0.6931472f, MOST = 32 * PER_ZERO;
    const Vec highest = _mm512_set1_ps(top.value);
    const Vec scale = _mm512_set1_ps(static_cast<float>(1.0 / temperature));
    double best = -INFINITY;
    __m512i steps = _mm512_add_epi64(
        _mm512_set1_epi64(static_cast<int64_t>(key)),
        _mm512_mullo_epi64(_mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1),
                           _mm512_set1_epi64(static_cast<int64_t>(GAMMA))));
    const __m512i onward = _mm512_set1_epi64(static_cast<int64_t>(GAMMA * 8));
    for (int i = 0; i < vocab; i += LANES, steps = _mm512_add_epi64(steps, onward)) {
        const __mmask16 there = first_lanes(std::min(LANES, vocab - i));
        const Vec score = _mm512_mul_ps(
            _mm512_sub_ps(_mm512_maskz_loadu_ps(there, row + i), highest), scale);
        const Vec needed = _mm512_sub_ps(_mm512_set1_ps(static_cast<float>(best) - MARGIN), score);
        __mmask16 open = _mm512_mask_cmp_ps_mask(there, needed, _mm512_set1_ps(MOST), _CMP_LE_OQ);
        if (open == 0) continue;
        const __m512i bits = _mm512_and_si512(mixed(steps), _mm512_set1_epi32(0x7fffffff));
        const Vec zeros = _mm512_cvtepi32_ps(_mm512_lzcnt_epi32(bits));
        open = _mm512_mask_cmp_ps_mask(
            open, needed, _mm512_mul_ps(zeros, _mm512_set1_ps(PER_ZERO)), _CMP_LE_OQ);
        if (open == 0) continue;
        alignas(64) uint32_t bit[LANES];
        _mm512_store_si512(bit, bits);
        for (; open != 0; open &= open - 1) {
            const int lane = __builtin_ctz(open);
            const double found = (static_cast<double>(row[i + lane]) - top.value) / temperature +
                                 gumbel(bit[lane]);
            if (found < best - MARGIN) continue;
            best = std::max(best, found);
            out.push_back(i + lane);
        }
    }
}

}  // namespace tidegate
