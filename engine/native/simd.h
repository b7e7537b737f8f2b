// The two element types, sixteen float32 lanes at a time.
//
// Every sum in these kernels is made in float32 in an order that depends on the row alone.
// The build forbids the compiler to contract a * b + c by itself, so that two instances of
// one template cannot differ in the last bit: where a fused multiply-add is meant, it is
// written.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace tidegate {

using Vec = __m512;
using Word = uint32_t;  // what a kernel multiplies at once: two bfloat16 or one float32

inline constexpr int LANES = 16;

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }

struct Float32 {
    using Storage = float;
    static constexpr int PER_WORD = 1;

    // acc + a * w, lane by lane.
    static Vec dot(Vec acc, __m512i a, __m512i w) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(w), acc);
    }
    static Vec load(const Storage* from) { return _mm512_loadu_ps(from); }
    static void store(Storage* to, Vec x) { _mm512_storeu_ps(to, x); }
    static void store(Storage* to, Vec x, int count) {
        _mm512_mask_storeu_ps(to, first_lanes(count), x);
    }
    static Vec load(const Storage* from, int count) {
        return _mm512_maskz_loadu_ps(first_lanes(count), from);
    }
    // Put sixteen elements into the place-th halves of as many words.
    static void store_part(Word* to, const Storage* from, int) {
        _mm512_storeu_ps(to, _mm512_loadu_ps(from));
    }
    // The first elements of words that are full only so far.
    static __m512i first_parts(__m512i words, int) { return words; }
};

struct BFloat16 {
    using Storage = uint16_t;
    static constexpr int PER_WORD = 2;

    // acc + a[0] * w[0] + a[1] * w[1], lane by lane.
    static Vec dot(Vec acc, __m512i a, __m512i w) {
#ifdef __AVX512BF16__
        return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)w);
#else
        const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
        acc = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                              _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), acc);
        return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                               _mm512_castsi512_ps(_mm512_and_si512(w, high)), acc);
#endif
    }
    static Vec widen(__m256i x) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    }
    // To the nearest, ties to even; what is no number stays none.
    static __m256i narrow(Vec x) {
#ifdef __AVX512BF16__
        return (__m256i)_mm512_cvtneps_pbh(x);
#else
        const __m512i bits = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        sum = _mm512_mask_set1_epi32(sum, nan, 0x7fc00000);
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
#endif
    }
    static Vec load(const Storage* from) {
        return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    static Vec load(const Storage* from, int count) {
        return widen(_mm256_maskz_loadu_epi16(first_lanes(count), from));
    }
    static void store(Storage* to, Vec x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(x));
    }
    static void store(Storage* to, Vec x, int count) {
        _mm256_mask_storeu_epi16(to, first_lanes(count), narrow(x));
    }
    static void store_part(Word* to, const Storage* from, int place) {
        const __m512i low = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        const __m512i x = place == 0 ? low : _mm512_slli_epi32(low, 16);
        _mm512_mask_storeu_epi16(to, place == 0 ? 0x55555555 : 0xaaaaaaaa, x);
    }
    static __m512i first_parts(__m512i words, int count) {
        return count == 1 ? _mm512_and_si512(words, _mm512_set1_epi32(0xffff)) : words;
    }
};

// e^x, within 2 units in the last place; 0 below -104, inf above 89; nan stays nan.
// Reduction to [-ln 2 / 2, ln 2 / 2] and a Taylor polynomial there.
inline Vec exp(Vec x) {
    // The constant comes first: these return their second operand if one is no number.
    x = _mm512_max_ps(_mm512_set1_ps(-105.0f), x);
    x = _mm512_min_ps(_mm512_set1_ps(90.0f), x);
    const Vec n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // ln 2 in two parts, the first with few enough bits that n times it is exact.
    Vec r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440054690583e-4f), r);
    Vec p = _mm512_set1_ps(1.0f / 5040);
    for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, n);
}

// The same for float64, from -745 to 709, within some units in the last place.
inline __m512d exp(__m512d x) {
    x = _mm512_max_pd(_mm512_set1_pd(-750.0), x);
    const __m512d n =
        _mm512_roundscale_pd(_mm512_mul_pd(x, _mm512_set1_pd(1.4426950408889634074)),
                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512d r = _mm512_fnmadd_pd(n, _mm512_set1_pd(6.93147180369123816490e-01), x);
    r = _mm512_fnmadd_pd(n, _mm512_set1_pd(1.90821492927058770002e-10), r);
    __m512d p = _mm512_set1_pd(1.0 / 6227020800);
    for (const double c : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                           1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5,
                           1.0, 1.0})
        p = _mm512_fmadd_pd(p, r, _mm512_set1_pd(c));
    return _mm512_scalef_pd(p, n);
}

}  // namespace tidegate
