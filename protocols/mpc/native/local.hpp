// Local parts of non-linear functions on shares, element by element: what a party computes from the
// words and bits it opened and the shares it was dealt. The numpy twins beside the primitives
// (nonlinear/gelu.py, nonlinear/exp.py, cipherprune/gelu_low.py, cipherprune/exp_low.py) define it.
// Helpers are static, because each instruction set must compile its own copy; V is a vector of words.
#pragma once

#include <cstdint>
#include <cstring>

namespace privml {

// n elements. `first` is 1 at rank 0, which holds public terms, else 0. Opened bits are packed
// planes of ceil(n / 64) words; shares that have several rows have them one after the other.
struct GeluTerms {
  int64_t n;
  uint64_t first;
  const uint64_t* coef;  // c4, c3, c2, c1, c0, 1/2 at scale 60
  const uint64_t *c, *bits, *power[4], *g, *h, *k;
  uint64_t *poly, *large;
};

struct GeluLowTerms {
  int64_t n;
  uint64_t first;
  const uint64_t* coef;  // of x^2, and 1/2, at the scales that bring both terms to the output's
  const uint64_t *c, *bits, *r, *r2, *m, *h;
  uint64_t* out;
};

// `table` is rise, fine and late of 1024 entries for exp, rise and late of 4096 for exp_low.
struct ExpTerms {
  int64_t n;
  int32_t shift;
  const uint64_t *table, *c, *wrapped, *clip, *share[4];
  uint64_t* out;
};

struct LocalKernels {
  void (*gelu)(const GeluTerms&);
  void (*gelu_low)(const GeluLowTerms&);
  void (*exp)(const ExpTerms&);
  void (*exp_low)(const ExpTerms&);
};

LocalKernels local_scalar();
LocalKernels local_avx2();
LocalKernels local_avx512();

namespace {

template <typename V>
constexpr int64_t kLanes = sizeof(V) / sizeof(uint64_t);

template <typename V>
V load(const uint64_t* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <typename V>
void store(uint64_t* p, const V& v) {
  std::memcpy(p, &v, sizeof v);
}

// All ones in the lanes whose packed bit i, i + 1, ... is set; the lanes lie in one packed word.
template <typename V>
V ones_at(const uint64_t* plane, int64_t i) {
  const uint64_t word = plane[i / 64] >> (i % 64);
  if constexpr (kLanes<V> == 1) {
    return -(word & 1);
  } else {
    V lane;
    for (int64_t l = 0; l < kLanes<V>; ++l) lane[l] = uint64_t(l);
    return -(((V{} + word) >> lane) & 1);
  }
}

// Share of a bit times x, from ones where the opened bit is set and a share of the bit's mask times
// x; `plain` is a share of x.
template <typename V>
V bit_times(const V& ones, const V& plain, const V& masked) {
  return (ones & plain) + (masked ^ ones) - ones;
}

template <typename V, typename X>
void each(const X& x, void (*wide)(const X&, int64_t), void (*one)(const X&, int64_t)) {
  int64_t i = 0;
  for (; i + kLanes<V> <= x.n; i += kLanes<V>) wide(x, i);
  for (; i < x.n; ++i) one(x, i);
}

}  // namespace
}  // namespace privml
