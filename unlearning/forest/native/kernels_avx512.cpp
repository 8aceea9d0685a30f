// AVX-512 kernels (F, DQ, BW, VL) for building nodes; the rest is taken from the AVX2 kernels,
// which are no slower on the short arrays of a change. Same results as the portable ones, bit for
// bit. Entered only on processors that have them, so nothing here may be inlined elsewhere.
#include <immintrin.h>

#include "kernels.hpp"

namespace privml::forest {
namespace {

__mmask16 first16(uint32_t n) { return n >= 16 ? 0xFFFF : __mmask16((1u << n) - 1); }

__m512 load(const float* at, uint32_t n) { return _mm512_maskz_loadu_ps(first16(n), at); }

template <int kVectors>
uint64_t bits_le(const __m512* x, __m512 w) {
  uint64_t bits = 0;
  for (int b = 0; b < kVectors; ++b)
    bits |= uint64_t(_mm512_cmp_ps_mask(x[b], w, _CMP_LE_OQ)) << (16 * b);
  return bits;
}

__m512i multiply(__m512i a, uint64_t b) {
  return _mm512_mullo_epi64(a, _mm512_set1_epi64(int64_t(b)));
}

__m512i mix(__m512i z) {
  z = multiply(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)), 0xBF58476D1CE4E5B9ull);
  z = multiply(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)), 0x94D049BB133111EBull);
  return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

void thresholds(uint64_t key, uint32_t count, float mn, float mx, float below_mx, float* w) {
  const __m512i golden = _mm512_set1_epi64(int64_t(0x9E3779B97F4A7C15ull));
  const __m512d from = _mm512_set1_pd(double(mn));
  const __m512d width = _mm512_set1_pd(double(mx) - double(mn)), unit = _mm512_set1_pd(0x1p-53);
  const __m256 high = _mm256_set1_ps(mx), last = _mm256_set1_ps(below_mx);
  __m512i j = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  for (uint32_t i = 0; i < count; i += 8, j = _mm512_add_epi64(j, _mm512_set1_epi64(8))) {
    const __m512i draw = mix(_mm512_add_epi64(
        mix(_mm512_xor_si512(_mm512_set1_epi64(int64_t(key)), j)), golden));
    const __m512d u = _mm512_mul_pd(_mm512_cvtepu64_pd(_mm512_srli_epi64(draw, 11)), unit);
    const __m256 t = _mm512_cvtpd_ps(_mm512_add_pd(from, _mm512_mul_pd(u, width)));
    const __m256 value =
        _mm256_mask_blend_ps(_mm256_cmp_ps_mask(t, high, _CMP_GE_OQ), t, last);
    _mm256_mask_storeu_ps(w + i, __mmask8(first16(count - i)), value);
  }
}

// One chunk of at most 16 * kVectors rows against all lanes.
template <int kVectors, class Count>
void count_chunk(const float* x, const float* w, uint32_t lanes, const uint64_t* masks,
                 uint32_t channels, uint32_t words, Count* left, Count* by_class,
                 uint32_t stride) {
  __m512 v[kVectors];
  for (int b = 0; b < kVectors; ++b) v[b] = _mm512_loadu_ps(x + 16 * b);
  for (uint32_t j = 0; j < lanes; ++j) {
    const uint64_t bits = bits_le<kVectors>(v, _mm512_set1_ps(w[j]));
    left[j] = Count(left[j] + __builtin_popcountll(bits));
    for (uint32_t c = 0; c < channels; ++c) {
      Count& cell = by_class[c * stride + j];
      cell = Count(cell + __builtin_popcountll(bits & masks[c * words]));
    }
  }
}

void store_lanes(uint8_t* at, __m512i v, __mmask16 some) {
  _mm_mask_storeu_epi8(at, some, _mm512_cvtepi32_epi8(v));
}
void store_lanes(uint16_t* at, __m512i v, __mmask16 some) {
  _mm256_mask_storeu_epi16(at, some, _mm512_cvtepi32_epi16(v));
}
void store_lanes(uint32_t* at, __m512i v, __mmask16 some) {
  _mm512_mask_storeu_epi32(at, some, v);
}

// Few rows, two classes: row by row against sixteen lanes, counters in registers.
template <class Count>
void count_few(const float* x, uint32_t n, const float* w, uint32_t lanes, uint64_t ones,
               Count* left, Count* by_class) {
  const __m512i one = _mm512_set1_epi32(1);
  for (uint32_t j = 0; j < lanes; j += 16) {
    const __mmask16 some = first16(lanes - j);
    const __m512 limits = load(w + j, lanes - j);
    __m512i all = _mm512_setzero_si512(), positive = all;
    for (uint32_t i = 0; i < n; ++i) {
      const __mmask16 in = _mm512_cmp_ps_mask(_mm512_set1_ps(x[i]), limits, _CMP_LE_OQ);
      all = _mm512_mask_add_epi32(all, in, all, one);
      positive = _mm512_mask_add_epi32(positive, in, positive,
                                       _mm512_set1_epi32(int(ones >> i & 1)));
    }
    store_lanes(left + j, all, some);
    store_lanes(by_class + j, positive, some);
  }
}

template <class Count>
void count(const float* x, uint32_t n, const float* w, uint32_t lanes, const uint64_t* masks,
           uint32_t channels, uint32_t words, Count* left, Count* by_class, uint32_t stride) {
  if (channels == 1 && n <= 32 && lanes > 8)
    return count_few(x, n, w, lanes, masks[0], left, by_class);
  for (uint32_t j = 0; j < lanes; ++j) left[j] = 0;
  for (uint32_t c = 0; c < channels; ++c)
    for (uint32_t j = 0; j < lanes; ++j) by_class[c * stride + j] = 0;
  uint32_t i = 0;
  const auto chunk = [&](auto kernel) {
    kernel(x + i, w, lanes, masks + i / kChunk, channels, words, left, by_class, stride);
  };
  for (; i + 32 < n; i += kChunk) chunk(count_chunk<4, Count>);
  if (i >= n) return;
  if (n - i > 16) chunk(count_chunk<2, Count>);
  else chunk(count_chunk<1, Count>);
}

// Sixteen lanes, or the eight of a last group and zeros.
__m512i widen(const uint8_t* at, __mmask16 some) {
  const __m128i* from = reinterpret_cast<const __m128i*>(at);
  return _mm512_cvtepu8_epi32(some == 0xFFFF ? _mm_loadu_si128(from) : _mm_loadl_epi64(from));
}

__m512i widen(const uint16_t* at, __mmask16 some) {
  if (some == 0xFFFF)
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  return _mm512_zextsi256_si512(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}

__m512i widen(const uint32_t* at, __mmask16 some) {
  if (some == 0xFFFF) return _mm512_loadu_si512(at);
  return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

template <class Count>
uint32_t all_admissible(const Count* left, uint32_t lanes, uint32_t n, uint32_t* out) {
  uint32_t found = 0;
  for (uint32_t j = 0; j < lanes; ++j)
    if (left[j] > 0 && left[j] < n) out[found++] = j;
  return found;
}

uint32_t lanes_above(const float* scores, uint32_t lanes, float limit, uint32_t* out) {
  uint32_t found = 0;
  const __m512 bound = _mm512_set1_ps(limit);
  const __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (uint32_t j = 0; j < lanes; j += 16) {
    const __mmask16 hits = _mm512_mask_cmp_ps_mask(first16(lanes - j), load(scores + j, lanes - j),
                                                   bound, _CMP_GE_OQ);
    _mm512_mask_compressstoreu_epi32(
        out + found, hits, _mm512_add_epi32(index, _mm512_set1_epi32(int(j))));
    found += uint32_t(__builtin_popcount(hits));
  }
  return found;
}

__mmask16 admissible(__m512i l, __m512i r) {
  const __m512i zero = _mm512_setzero_si512();
  return _mm512_cmpgt_epi32_mask(l, zero) & _mm512_cmpgt_epi32_mask(r, zero);
}

// D for two classes; the bounds on its rounding are in kernels_avx2_score.hpp.
template <class Count>
__m512 score_binary(const Count* left, const Count* ones, __mmask16 some, __m512i all,
                    __m512i positives) {
  const __m512i l = widen(left, some), a = widen(ones, some), r = _mm512_sub_epi32(all, l);
  const __m512 d = _mm512_cvtepi32_ps(
      _mm512_sub_epi32(_mm512_mullo_epi32(a, all), _mm512_mullo_epi32(l, positives)));
  const __m512 bottom = _mm512_mul_ps(_mm512_cvtepi32_ps(l), _mm512_cvtepi32_ps(r));
  return _mm512_mask_div_ps(_mm512_set1_ps(-1.0f), admissible(l, r), _mm512_mul_ps(d, d), bottom);
}

template <class Count>
uint32_t screen_binary(const Count* left, const Count* ones, uint32_t lanes, uint32_t n,
                       uint32_t n_ones, float* scores, uint32_t* out) {
  if (n > kScreenRows) return all_admissible(left, lanes, n, out);
  const __m512i all = _mm512_set1_epi32(int(n)), positives = _mm512_set1_epi32(int(n_ones));
  __m512 best = _mm512_set1_ps(-1.0f);
  for (uint32_t j = 0; j < lanes; j += 16) {
    const __mmask16 some = first16(lanes - j);
    const __m512 score = score_binary(left + j, ones + j, some, all, positives);
    _mm512_mask_storeu_ps(scores + j, some, score);
    best = _mm512_max_ps(best, score);
  }
  const float top = _mm512_reduce_max_ps(best), rows = float(n);
  return top < 0 ? 0
                 : lanes_above(scores, lanes, top - top * 2e-6f - rows * rows * 4e-15f, out);
}

template <class Count>
CountKernels<Count> with(CountKernels<Count> kernels) {
  kernels.count = count<Count>;
  kernels.screen_binary = screen_binary<Count>;
  return kernels;
}

Kernels combine() {
  Kernels kernels = kernels_avx2();
  kernels.thresholds = thresholds;
  kernels.bytes = with(kernels.bytes);
  kernels.words = with(kernels.words);
  kernels.dwords = with(kernels.dwords);
  return kernels;
}

}  // namespace

const Kernels& kernels_avx512() {
  static const Kernels kernels = combine();
  return kernels;
}

}  // namespace privml::forest
