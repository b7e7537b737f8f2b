// What acts on one row at a time: norms, rotations, gates.
#pragma once

#include <cmath>

#include "simd.h"

namespace tidegate {

// out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, "Root mean square layer
// normalization", 2019), in float32; in and out may be the same if E is Float32.
template <class E>
void rms_norm(const float* x, const float* weight, int width, float eps,
              typename E::Storage* out) {
    Vec squares = _mm512_setzero_ps();
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        const Vec v = _mm512_loadu_ps(x + i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    if (i < width) {
        const Vec v = Float32::load(x + i, width - i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(width);
    const Vec factor = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
    for (i = 0; i + LANES <= width; i += LANES)
        E::store(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor),
                                        _mm512_loadu_ps(weight + i)));
    if (i < width)
        E::store(out + i,
                 _mm512_mul_ps(_mm512_mul_ps(Float32::load(x + i, width - i), factor),
                               Float32::load(weight + i, width - i)),
                 width - i);
}

// Rotate a head by its position's angles (Su et al., "RoFormer", 2021): element i of the
// first half goes with element i of the second. cos and sin are [dim / 2].
template <class E>
void rotate(const float* x, const float* cos, const float* sin, int dim,
            typename E::Storage* out) {
    const int half = dim / 2;
    for (int i = 0; i < half; i += LANES) {
        const int count = half - i < LANES ? half - i : LANES;
        const Vec a = Float32::load(x + i, count), b = Float32::load(x + half + i, count);
        const Vec c = Float32::load(cos + i, count), s = Float32::load(sin + i, count);
        E::store(out + i, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)), count);
        E::store(out + half + i, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)), count);
    }
}

// silu(gate) * up.
inline Vec gated(Vec gate, Vec up) {
    const Vec one = _mm512_set1_ps(1.0f);
    const Vec down = exp(_mm512_sub_ps(_mm512_setzero_ps(), gate));
    return _mm512_mul_ps(_mm512_div_ps(gate, _mm512_add_ps(one, down)), up);
}

}  // namespace tidegate
