// Portable kernels; they define what the vector kernels compute.
#include "kernels.hpp"

namespace privml::forest {
namespace {

Range range(const float* x, uint32_t n) {
  Range r{0, 0, 0, 0, 0};
  bool any = false;
  for (uint32_t i = 0; i < n; ++i) {
    const float v = x[i];
    if (v != v) {
      ++r.missing;
      continue;
    }
    if (!any || v < r.mn) r.mn = v, r.at_mn = 0;
    if (!any || v > r.mx) r.mx = v, r.at_mx = 0;
    any = true;
    r.at_mn += v == r.mn;
    r.at_mx += v == r.mx;
  }
  return r;
}

void mask_le(const float* x, uint32_t n, float w, uint64_t* out) {
  for (uint32_t i = 0; i < n; i += kChunk) {
    uint64_t bits = 0;
    for (uint32_t b = 0; b < kChunk && i + b < n; ++b) bits |= uint64_t(x[i + b] <= w) << b;
    out[i / kChunk] = bits;
  }
}

void mask_bit(const uint64_t* words, uint32_t n, uint32_t bit, uint64_t* out) {
  for (uint32_t i = 0; i < n; i += kChunk) {
    uint64_t bits = 0;
    for (uint32_t b = 0; b < kChunk && i + b < n; ++b) bits |= (words[i + b] >> bit & 1) << b;
    out[i / kChunk] = bits;
  }
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

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
  uint32_t i = 0;
  while (i < n && at[i] != value) ++i;
  return i;
}

template <class Count>
void count(const float* x, uint32_t n, const float* w, uint32_t lanes, const uint64_t* masks,
           uint32_t channels, uint32_t words, Count* left, Count* by_class, uint32_t stride) {
  for (uint32_t j = 0; j < lanes; ++j) {
    uint32_t total = 0;
    for (uint32_t c = 0; c < channels; ++c) by_class[c * stride + j] = 0;
    for (uint32_t i = 0; i < n; ++i) {
      if (!(x[i] <= w[j])) continue;
      ++total;
      for (uint32_t c = 0; c < channels; ++c)
        by_class[c * stride + j] =
            Count(by_class[c * stride + j] + (masks[c * words + i / kChunk] >> i % kChunk & 1));
    }
    left[j] = Count(total);
  }
}

template <class Count>
void update(const float* w, uint32_t lanes, float x, int32_t step, Count* left, Count* by_class) {
  for (uint32_t j = 0; j < lanes; ++j) {
    if (!(x <= w[j])) continue;
    left[j] = Count(left[j] + step);
    if (by_class) by_class[j] = Count(by_class[j] + step);
  }
}

// Two passes: the first decides without branches what each slot needs, for its outcome is as good
// as random; the second moves the counters.
template <class Count>
uint64_t update_slots(const SlotColumns& s, const float* thresholds, Count* left, Count* by_class,
                      const float* x, int32_t step) {
  uint64_t numeric = 0, lows = 0, special = 0;
  const uint32_t least = step > 0 ? 0 : 1;  // the last holder of an extreme is special
  for (uint32_t q = 0; q < s.count; ++q) {
    const float v = x[s.column(kAttribute)[q]];
    float mn, mx;
    __builtin_memcpy(&mn, &s.column(kMn)[q], 4);
    __builtin_memcpy(&mx, &s.column(kMx)[q], 4);
    const bool low = v == mn, high = v == mx;
    const bool stays = (low && s.column(kAtMn)[q] > least) ||
                       (high && s.column(kAtMx)[q] > least) ||
                       (s.column(kInside)[q] && v > mn && v < mx);
    const uint64_t bit = uint64_t(1) << q;
    if (!(stays && mn < mx && s.column(kSimple)[q])) {
      special |= bit;
      continue;
    }
    if (low) s.column(kAtMn)[q] += uint32_t(step);
    if (high) s.column(kAtMx)[q] += uint32_t(step);
    if (s.column(kInside)[q]) numeric |= bit;
    else if (low) lows |= bit;
  }
  for (uint64_t rest = numeric; rest != 0; rest &= rest - 1) {
    const uint32_t q = uint32_t(__builtin_ctzll(rest));
    const uint32_t lane = s.info[q].lane;
    update(thresholds + lane, s.info[q].lanes, x[s.column(kAttribute)[q]], step, left + lane,
           by_class ? by_class + lane : nullptr);
  }
  for (uint64_t rest = lows; rest != 0; rest &= rest - 1) {
    const uint32_t lane = s.info[__builtin_ctzll(rest)].lane;
    left[lane] = Count(left[lane] + step);
    if (by_class) by_class[lane] = Count(by_class[lane] + step);
  }
  return special;
}

template <class Count>
uint32_t admissible(const Count* left, uint32_t lanes, uint32_t n, uint32_t* out) {
  uint32_t found = 0;
  for (uint32_t j = 0; j < lanes; ++j)
    if (left[j] > 0 && left[j] < n) out[found++] = j;
  return found;
}

template <class Count>
uint32_t screen_binary(const Count* left, const Count*, uint32_t lanes, uint32_t n, uint32_t,
                       float*, uint32_t* out) {
  return admissible(left, lanes, n, out);
}

template <class Count>
uint32_t screen_multi(const Count* left, const Count*, uint32_t lanes, uint32_t n,
                      const uint32_t*, uint32_t, float*, uint32_t* out) {
  return admissible(left, lanes, n, out);
}

// The portable kernels do not screen: they look at all candidates each time.
template <class Count>
bool stands(const Lead&, const Count*, const Count*) {
  return false;
}

void count_sums(const float* x, const int64_t* y, uint32_t n, const float* w, uint32_t lanes,
                uint32_t* left, int64_t* sums) {
  for (uint32_t j = 0; j < lanes; ++j) {
    left[j] = 0;
    sums[j] = 0;
    for (uint32_t i = 0; i < n; ++i) {
      if (!(x[i] <= w[j])) continue;
      ++left[j];
      sums[j] += y[i];
    }
  }
}

void update_sums(const float* w, uint32_t lanes, float x, int32_t step, int64_t y, uint32_t* left,
                 int64_t* sums) {
  for (uint32_t j = 0; j < lanes; ++j) {
    if (!(x <= w[j])) continue;
    left[j] += uint32_t(step);
    sums[j] += step * y;
  }
}

template <class Count>
constexpr CountKernels<Count> kCounts{count<Count>,         update<Count>, update_slots<Count>,
                                      screen_binary<Count>, stands<Count>, screen_multi<Count>};

}  // namespace

const Kernels& kernels_scalar() {
  static const Kernels kernels{false,
                               range,
                               mask_le,
                               mask_bit,
                               thresholds,
                               find,
                               count_sums,
                               update_sums,
                               kCounts<uint8_t>,
                               kCounts<uint16_t>,
                               kCounts<uint32_t>};
  return kernels;
}

}  // namespace privml::forest
