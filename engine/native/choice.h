// What choosing a token needs of a whole row of logits; the choice itself is made of little.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
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

// Gumbel noise of a token's 31 bits, which are rounded as engine/noise.py rounds them.
inline double gumbel(uint32_t bits) {
    const float v = std::min((static_cast<float>(bits) + 0.5f) * 0x1p-31f, 1 - 0x1p-24f);
    return -std::log(-std::log1p(-static_cast<double>(v)));
}

// Which tokens top_k, top_p and min_p leave: those above `least`, the first `ties` of those
// that equal it, and of these all whose distance from the top is at least `log_min_p`.
struct Limit {
    float least = -INFINITY;
    int64_t ties = std::numeric_limits<int64_t>::max();
    double log_min_p = -INFINITY;
};

struct Filter {
    int64_t top_k;  // as many as the vocabulary has: off
    double top_p;   // 1: off
    double log_min_p;
};

// Finds the limit of a row in time proportional to its length, without sorting it: tokens are
// counted and weighed by how far they are from the top, then one bucket is sorted.
//
// A token weighs exp((logit - top) / temperature) times a power of two, as an integer, so that
// sums have no order. What is further away than REACH shares the last bucket.
class Limiter {
  public:
    Limiter(const float* row, int vocab, float top, double temperature)
        : row_(row), vocab_(vocab), top_(top), temperature_(temperature),
          scale_(static_cast<float>(std::min(BUCKETS_A_UNIT / temperature, 1e30))),
          unit_(std::ldexp(1.0, 62 - (32 - __builtin_clz(static_cast<unsigned>(vocab))))) {}

    Limit find(const Filter& filter) {
        Limit limit;
        limit.log_min_p = filter.log_min_p;
        if (filter.top_k < vocab_ || filter.top_p < 1) {
            // Most often the near ones are enough, and to tell only those apart is faster.
            count(NEAR * BUCKETS_A_UNIT);
            if (!reaches(filter, limit)) {
                count(REACH * BUCKETS_A_UNIT);
                reaches(filter, limit);
            }
        }
        return limit;
    }

  private:
    static constexpr int NEAR = 8, REACH = 32, BUCKETS_A_UNIT = 64;

    // The last bucket of which something is kept, and how many tokens of it.
    struct Cut {
        int bucket;
        int64_t tokens;
    };

    // Of sixteen tokens from i; those infinitely far are in the last.
    __m512i buckets(int i, __mmask16 there) const {
        const Vec x = _mm512_maskz_loadu_ps(there, row_ + i);
        const Vec far = _mm512_mul_ps(_mm512_sub_ps(_mm512_set1_ps(top_), x),
                                      _mm512_set1_ps(scale_));
        return _mm512_cvttps_epi32(_mm512_min_ps(far, _mm512_set1_ps(static_cast<float>(last_))));
    }

    __m512i weights(__m256 x) const {
        const __m512d far = _mm512_div_pd(
            _mm512_sub_pd(_mm512_cvtps_pd(x), _mm512_set1_pd(top_)), _mm512_set1_pd(temperature_));
        return _mm512_cvttpd_epi64(_mm512_mul_pd(exp(far), _mm512_set1_pd(unit_)));
    }

    int64_t weight(float x) const {
        return _mm_cvtsi128_si64(_mm512_castsi512_si128(weights(_mm256_set1_ps(x))));
    }

    // Count and weigh the tokens of each bucket; those from `last` on share one.
    void count(int last) {
        last_ = last;
        tokens_.assign(last + 1, 0);
        weights_.assign(last + 1, 0);
        __m512i beyond = _mm512_setzero_si512();
        for (int i = 0; i < vocab_; i += LANES) {
            const __mmask16 there = first_lanes(std::min(LANES, vocab_ - i));
            const __m512i bucket = buckets(i, there);
            const __mmask16 near =
                _mm512_mask_cmplt_epi32_mask(there, bucket, _mm512_set1_epi32(last));
            const __mmask16 far = there & ~near;
            const Vec x = _mm512_maskz_loadu_ps(there, row_ + i);
            alignas(64) int64_t weight[LANES];
            const __m512i low = weights(_mm512_castps512_ps256(x));
            const __m512i high = weights(_mm512_extractf32x8_ps(x, 1));
            beyond = _mm512_mask_add_epi64(beyond, static_cast<__mmask8>(far), beyond, low);
            beyond = _mm512_mask_add_epi64(beyond, static_cast<__mmask8>(far >> 8), beyond, high);
            tokens_[last] += __builtin_popcount(far);
            if (near == 0) continue;
            alignas(64) int32_t index[LANES];
            _mm512_store_si512(index, bucket);
            _mm512_store_si512(weight, low);
            _mm512_store_si512(weight + 8, high);
            for (__mmask16 left = near; left != 0; left &= left - 1) {
                const int lane = __builtin_ctz(left);
                ++tokens_[index[lane]];
                weights_[index[lane]] += weight[lane];
            }
        }
        weights_[last] = _mm512_reduce_add_epi64(beyond);
    }

    // Set the limit; false if it lies among tokens that were not told apart.
    bool reaches(const Filter& filter, Limit& limit) const {
        const bool all = last_ == REACH * BUCKETS_A_UNIT;
        Cut cut{last_, std::numeric_limits<int64_t>::max()};
        if (filter.top_k < vocab_) {
            cut = nearest(filter.top_k);
            if (cut.bucket == last_ && !all) return false;
            if (filter.top_p == 1) end_at(sorted(cut.bucket), cut.tokens, limit);
        }
        return filter.top_p == 1 || nucleus(filter.top_p, cut, all, limit);
    }

    // The logits of a bucket, largest first.
    std::vector<float> sorted(int bucket) const {
        std::vector<float> found;
        for (int i = 0; i < vocab_; i += LANES) {
            const __mmask16 there = first_lanes(std::min(LANES, vocab_ - i));
            __mmask16 in = _mm512_mask_cmpeq_epi32_mask(there, buckets(i, there),
                                                        _mm512_set1_epi32(bucket));
            for (; in != 0; in &= in - 1) found.push_back(row_[i + __builtin_ctz(in)]);
        }
        std::sort(found.begin(), found.end(), std::greater<float>());
        return found;
    }

    static void end_at(const std::vector<float>& found, int64_t kept, Limit& limit) {
        limit.least = found[kept - 1];
        limit.ties = std::count(found.begin(), found.begin() + kept, limit.least);
    }

    Cut nearest(int64_t top_k) const {
        int bucket = 0;
        while (tokens_[bucket] < top_k) top_k -= tokens_[bucket++];
        return {bucket, top_k};
    }

    bool nucleus(double top_p, const Cut& cut, bool all, Limit& limit) const {
        int64_t total = 0;
        for (int b = 0; b < cut.bucket; ++b) total += weights_[b];
        if (cut.tokens < tokens_[cut.bucket]) {
            const std::vector<float> found = sorted(cut.bucket);
            for (int64_t i = 0; i < cut.tokens; ++i) total += weight(found[i]);
        } else {
            total += weights_[cut.bucket];
        }
        const int64_t goal = static_cast<int64_t>(std::ceil(top_p * static_cast<double>(total)));
        int64_t before = 0;
        int bucket = 0;
        while (bucket < cut.bucket && before + weights_[bucket] < goal) before += weights_[bucket++];
        if (bucket == last_ && !all) return false;
        const std::vector<float> found = sorted(bucket);
        const int64_t most =
            bucket < cut.bucket ? found.size() : std::min<int64_t>(cut.tokens, found.size());
        int64_t kept = 0;
        while (kept < most && before < goal) before += weight(found[kept++]);
        end_at(found, kept, limit);
        return true;
    }

    const float* row_;
    int vocab_;
    float top_;
    double temperature_;
    float scale_;
    double unit_;
    int last_ = 0;
    std::vector<int64_t> tokens_, weights_;
};

// All tokens that could win the draw whose key is given, ascending; most often a few.
//
// The winner has the largest (logit - top) / temperature + noise. How large a token's noise
// can be shows in its bits' leading zeros, so nearly all are ruled out without a logarithm.
// Scores are estimated here, within a margin; whoever asks computes those of the candidates.
inline void candidates(const float* row, int vocab, float top, double temperature, uint64_t key,
                       Limit limit, std::vector<int32_t>& out) {
    constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15;
    constexpr float MARGIN = 1e-3f, PER_ZERO = 0.6931472f, MOST = 32 * PER_ZERO;
    const Vec highest = _mm512_set1_ps(top), least = _mm512_set1_ps(limit.least);
    const Vec scale = _mm512_set1_ps(static_cast<float>(1.0 / temperature));
    double best = -INFINITY;
    __m512i steps = _mm512_add_epi64(
        _mm512_set1_epi64(static_cast<int64_t>(key)),
        _mm512_mullo_epi64(_mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1),
                           _mm512_set1_epi64(static_cast<int64_t>(GAMMA))));
    const __m512i onward = _mm512_set1_epi64(static_cast<int64_t>(GAMMA * 8));
    for (int i = 0; i < vocab; i += LANES, steps = _mm512_add_epi64(steps, onward)) {
        __mmask16 there = first_lanes(std::min(LANES, vocab - i));
        const Vec x = _mm512_maskz_loadu_ps(there, row + i);
        there = _mm512_mask_cmp_ps_mask(there, x, least, _CMP_GE_OQ);
        if (there == 0) continue;
        for (__mmask16 tied = _mm512_mask_cmp_ps_mask(there, x, least, _CMP_EQ_OQ); tied != 0;
             tied &= tied - 1)
            if (--limit.ties < 0) there &= ~(tied & -tied);
        const Vec score = _mm512_mul_ps(_mm512_sub_ps(x, highest), scale);
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
            const double far = (static_cast<double>(row[i + lane]) - top) / temperature;
            const double found = far + gumbel(bit[lane]);
            if (far < limit.log_min_p || found < best - MARGIN) continue;
            best = std::max(best, found);
            out.push_back(i + lane);
        }
    }
}

}  // namespace tidegate
