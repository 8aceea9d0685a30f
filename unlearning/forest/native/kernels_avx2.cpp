// AVX2 kernels; same results as the portable ones, bit for bit. Compiled with -mavx2 and entered
// only on processors that have it, so nothing here may be inlined elsewhere.
#include <immintrin.h>

#include "kernels.hpp"

namespace privml::forest {
namespace {

constexpr float kInf = __builtin_inff();

__m256 load(const float* at) { return _mm256_loadu_ps(at); }

uint32_t sum_lanes(__m256i v) {
  alignas(32) uint32_t lane[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane), v);
  uint32_t total = 0;
  for (uint32_t x : lane) total += x;
  return total;
}

float min_lanes(__m256 v) {
  __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_min_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_min_ss(m, _mm_shuffle_ps(m, m, 1)));
}

float max_lanes(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// Padding is NaN, which min and max skip as long as it is their first operand.
Range range(const float* x, uint32_t n) {
  const uint32_t padded = round_up(n, 8);
  __m256 mn = _mm256_set1_ps(kInf), mx = _mm256_set1_ps(-kInf);
  __m256i present = _mm256_setzero_si256();
  for (uint32_t i = 0; i < padded; i += 8) {
    const __m256 v = load(x + i);
    mn = _mm256_min_ps(v, mn);
    mx = _mm256_max_ps(v, mx);
    present = _mm256_sub_epi32(present, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_EQ_OQ)));
  }
  Range r{0, 0, 0, 0, n - sum_lanes(present)};
  if (r.missing == n) return r;
  // Minimum and maximum of zeros may pick either sign; the rows hold only +0.
  r.mn = min_lanes(mn);
  r.mx = max_lanes(mx);
  const __m256 low = _mm256_set1_ps(r.mn), high = _mm256_set1_ps(r.mx);
  __m256i at_mn = _mm256_setzero_si256(), at_mx = at_mn;
  for (uint32_t i = 0; i < padded; i += 8) {
    const __m256 v = load(x + i);
    at_mn = _mm256_sub_epi32(at_mn, _mm256_castps_si256(_mm256_cmp_ps(v, low, _CMP_EQ_OQ)));
    at_mx = _mm256_sub_epi32(at_mx, _mm256_castps_si256(_mm256_cmp_ps(v, high, _CMP_EQ_OQ)));
  }
  r.at_mn = sum_lanes(at_mn);
  r.at_mx = sum_lanes(at_mx);
  return r;
}

// Bits of 8 * vectors values, in order.
template <int kVectors>
uint64_t bits_le(const __m256* x, __m256 w) {
  if constexpr (kVectors == 1) {
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x[0], w, _CMP_LE_OQ)));
  } else if constexpr (kVectors == 2) {
    return bits_le<1>(x, w) | bits_le<1>(x + 1, w) << 8;
  } else if constexpr (kVectors == 4) {
    const __m256i a = _mm256_packs_epi32(
        _mm256_castps_si256(_mm256_cmp_ps(x[0], w, _CMP_LE_OQ)),
        _mm256_castps_si256(_mm256_cmp_ps(x[1], w, _CMP_LE_OQ)));
    const __m256i b = _mm256_packs_epi32(
        _mm256_castps_si256(_mm256_cmp_ps(x[2], w, _CMP_LE_OQ)),
        _mm256_castps_si256(_mm256_cmp_ps(x[3], w, _CMP_LE_OQ)));
    // The packs work within 128-bit halves; put the groups of four rows back in order.
    const __m256i in_order = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b),
                                                         _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return uint32_t(_mm256_movemask_epi8(in_order));
  } else {
    return bits_le<4>(x, w) | bits_le<4>(x + 4, w) << 32;
  }
}

void mask_le(const float* x, uint32_t n, float w, uint64_t* out) {
  const __m256 limit = _mm256_set1_ps(w);
  for (uint32_t i = 0; i < n; i += kChunk) {
    __m256 v[8];
    for (int b = 0; b < 8; ++b) v[b] = load(x + i + 8 * b);
    out[i / kChunk] = bits_le<8>(v, limit);
  }
}

void mask_bit(const uint64_t* words, uint32_t n, uint32_t bit, uint64_t* out) {
  const __m128i up = _mm_cvtsi32_si128(int(63 - bit));
  for (uint32_t i = 0; i < n; i += kChunk) {
    uint64_t bits = 0;
    for (uint32_t b = 0; b < kChunk; b += 4) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i + b));
      const int four = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_sll_epi64(v, up)));
      bits |= uint64_t(four) << b;
    }
    if (n - i < kChunk) bits &= (uint64_t(1) << (n - i)) - 1;
    out[i / kChunk] = bits;
  }
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The text of prf.hpp again, for a header's inline functions must not be compiled here.
void thresholds(uint64_t key, uint32_t count, float mn, float mx, float below_mx, float* w) {
  const double from = double(mn), width = double(mx) - double(mn);
  for (uint32_t j = 0; j < count; ++j) {
    const uint64_t draw = mix(mix(key ^ j) + 0x9E3779B97F4A7C15ull);
    const double u = double(int64_t(draw >> 11)) * 0x1p-53;
    const float t = float(from + u * width);
    w[j] = t >= mx ? below_mx : t;
  }
}

uint32_t find(const uint32_t* at, uint32_t n, uint32_t value) {
  const __m256i wanted = _mm256_set1_epi32(int(value));
  uint32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + i));
    const int hit = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(v, wanted)));
    if (hit) return i + uint32_t(__builtin_ctz(unsigned(hit)));
  }
  while (i < n && at[i] != value) ++i;
  return i;
}

// One chunk of at most 8 * kVectors rows against all lanes.
template <int kVectors, class Count>
void count_chunk(const float* x, const float* w, uint32_t lanes, const uint64_t* masks,
                 uint32_t channels, uint32_t words, Count* left, Count* by_class,
                 uint32_t stride) {
  __m256 v[kVectors];
  for (int b = 0; b < kVectors; ++b) v[b] = load(x + 8 * b);
  if (channels == 1) {
    const uint64_t ones = masks[0];
    for (uint32_t j = 0; j < lanes; ++j) {
      const uint64_t bits = bits_le<kVectors>(v, _mm256_broadcast_ss(w + j));
      left[j] = Count(left[j] + __builtin_popcountll(bits));
      by_class[j] = Count(by_class[j] + __builtin_popcountll(bits & ones));
    }
    return;
  }
  for (uint32_t j = 0; j < lanes; ++j) {
    const uint64_t bits = bits_le<kVectors>(v, _mm256_broadcast_ss(w + j));
    left[j] = Count(left[j] + __builtin_popcountll(bits));
    for (uint32_t c = 0; c < channels; ++c) {
      Count& cell = by_class[c * stride + j];
      cell = Count(cell + __builtin_popcountll(bits & masks[c * words]));
    }
  }
}

template <class Count>
void count(const float* x, uint32_t n, const float* w, uint32_t lanes, const uint64_t* masks,
           uint32_t channels, uint32_t words, Count* left, Count* by_class, uint32_t stride) {
  for (uint32_t j = 0; j < lanes; ++j) left[j] = 0;
  for (uint32_t c = 0; c < channels; ++c)
    for (uint32_t j = 0; j < lanes; ++j) by_class[c * stride + j] = 0;
  uint32_t i = 0;
  const auto chunk = [&](auto kernel) {
    kernel(x + i, w, lanes, masks + i / kChunk, channels, words, left, by_class, stride);
  };
  for (; i + 32 < n; i += kChunk) chunk(count_chunk<8, Count>);
  if (i >= n) return;
  const uint32_t rest = n - i;
  if (rest > 16) chunk(count_chunk<4, Count>);
  else if (rest > 8) chunk(count_chunk<2, Count>);
  else chunk(count_chunk<1, Count>);
}

__m256i below(const float* w, __m256 x) {
  return _mm256_castps_si256(_mm256_cmp_ps(x, load(w), _CMP_LE_OQ));
}

// Adds -1 or +1 where the mask is set: subtracting a mask adds one.
void add_mask(uint16_t* at, __m128i mask, __m128i flip) {
  __m128i* to = reinterpret_cast<__m128i*>(at);
  const __m128i step = _mm_sub_epi16(_mm_xor_si128(mask, flip), flip);
  _mm_storeu_si128(to, _mm_add_epi16(_mm_loadu_si128(to), step));
}

void add_mask(uint8_t* at, __m128i mask, __m128i flip) {
  __m128i* to = reinterpret_cast<__m128i*>(at);
  const __m128i step = _mm_sub_epi8(_mm_xor_si128(mask, flip), flip);
  _mm_storel_epi64(to, _mm_add_epi8(_mm_loadl_epi64(to), step));
}

void update_lanes(const float* w, uint32_t lanes, float x, int32_t step, uint8_t* left,
                  uint8_t* by_class) {
  const __m256 value = _mm256_set1_ps(x);
  const __m128i flip = _mm_set1_epi8(step > 0 ? -1 : 0);
  for (uint32_t j = 0; j < lanes; j += kLane) {
    const __m256i wide = below(w + j, value);
    const __m128i half =
        _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    const __m128i mask = _mm_packs_epi16(half, half);
    add_mask(left + j, mask, flip);
    if (by_class) add_mask(by_class + j, mask, flip);
  }
}

void update_lanes(const float* w, uint32_t lanes, float x, int32_t step, uint16_t* left,
              uint16_t* by_class) {
  const __m256 value = _mm256_set1_ps(x);
  const __m128i flip = _mm_set1_epi16(step > 0 ? -1 : 0);
  for (uint32_t j = 0; j < lanes; j += kLane) {
    const __m256i wide = below(w + j, value);
    const __m128i mask =
        _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    add_mask(left + j, mask, flip);
    if (by_class) add_mask(by_class + j, mask, flip);
  }
}

void add_mask(uint32_t* at, __m256i mask, __m256i flip) {
  __m256i* to = reinterpret_cast<__m256i*>(at);
  const __m256i step = _mm256_sub_epi32(_mm256_xor_si256(mask, flip), flip);
  _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), step));
}

void update_lanes(const float* w, uint32_t lanes, float x, int32_t step, uint32_t* left,
              uint32_t* by_class) {
  const __m256 value = _mm256_set1_ps(x);
  const __m256i flip = _mm256_set1_epi32(step > 0 ? -1 : 0);
  for (uint32_t j = 0; j < lanes; j += kLane) {
    const __m256i mask = below(w + j, value);
    add_mask(left + j, mask, flip);
    if (by_class) add_mask(by_class + j, mask, flip);
  }
}

__m128i load4(const uint32_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

unsigned bits4(__m128i mask) { return unsigned(_mm_movemask_ps(_mm_castsi128_ps(mask))); }

// What a row does to four slots: bits of those it is simple for, and of those where it equals mn.
struct Four {
  unsigned simple, low;
};

Four update_extremes(const SlotColumns& s, uint32_t q, const float* x, __m128i step,
                     __m128i least) {
  const uint32_t* a = s.column(kAttribute) + q;
  const __m128 v = _mm_setr_ps(x[a[0]], x[a[1]], x[a[2]], x[a[3]]);  // faster than a gather
  const __m128 mn = _mm_castsi128_ps(load4(s.column(kMn) + q));
  const __m128 mx = _mm_castsi128_ps(load4(s.column(kMx) + q));
  const __m128i at_mn = load4(s.column(kAtMn) + q), at_mx = load4(s.column(kAtMx) + q);
  const __m128i low = _mm_castps_si128(_mm_cmpeq_ps(v, mn));
  const __m128i high = _mm_castps_si128(_mm_cmpeq_ps(v, mx));
  const __m128i between = _mm_castps_si128(_mm_and_ps(_mm_cmplt_ps(mn, v), _mm_cmplt_ps(v, mx)));
  const __m128i stays = _mm_or_si128(
      _mm_or_si128(_mm_and_si128(low, _mm_cmpgt_epi32(at_mn, least)),
                   _mm_and_si128(high, _mm_cmpgt_epi32(at_mx, least))),
      _mm_and_si128(between, load4(s.column(kInside) + q)));
  const __m128i simple = _mm_and_si128(
      _mm_and_si128(stays, load4(s.column(kSimple) + q)), _mm_castps_si128(_mm_cmplt_ps(mn, mx)));
  const __m128i move = _mm_and_si128(simple, step);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(s.column(kAtMn) + q),
                   _mm_add_epi32(at_mn, _mm_and_si128(move, low)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(s.column(kAtMx) + q),
                   _mm_add_epi32(at_mx, _mm_and_si128(move, high)));
  return {bits4(simple), bits4(_mm_and_si128(simple, low))};
}

template <class Count>
uint64_t update_slots(const SlotColumns& s, const float* thresholds, Count* left, Count* by_class,
                      const float* x, int32_t step) {
  const __m128i move = _mm_set1_epi32(step);
  const __m128i least = _mm_set1_epi32(step > 0 ? 0 : 1);  // the last holder is special
  uint64_t simple = 0, low = 0;
  for (uint32_t q = 0; q < s.count; q += kSlots) {
    const Four four = update_extremes(s, q, x, move, least);
    simple |= uint64_t(four.simple) << q;
    low |= uint64_t(four.low) << q;
  }
  for (uint64_t rest = simple & ~s.pairs; rest != 0; rest &= rest - 1) {
    const uint32_t q = uint32_t(__builtin_ctzll(rest));
    const uint32_t lane = s.info[q].lane;
    update_lanes(thresholds + lane, s.info[q].lanes, x[s.column(kAttribute)[q]], step, left + lane,
                 by_class ? by_class + lane : nullptr);
  }
  for (uint64_t rest = low & s.pairs; rest != 0; rest &= rest - 1) {
    const uint32_t lane = s.info[__builtin_ctzll(rest)].lane;
    left[lane] = Count(left[lane] + step);
    if (by_class) by_class[lane] = Count(by_class[lane] + step);
  }
  const uint64_t all = s.count < 64 ? (uint64_t(1) << s.count) - 1 : ~uint64_t(0);
  return all & ~simple;
}

}  // namespace
}  // namespace privml::forest

#include "kernels_avx2_score.hpp"
