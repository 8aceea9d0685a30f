// Local part of GELU on shares: selected polynomials, word by word; nonlinear/gelu.py defines it.
// Static, because each instruction set must compile its own copy; V is a vector of words.
#pragma once

#include <cstdint>
#include <cstring>

namespace privml {

// n elements; z, g, h and k hold 3, 5, 5 and 4 rows of n words, power the arrays r, r^2, r^3, r^4.
struct GeluTerms {
  int64_t n;
  uint64_t first;         // 1 at rank 0, which holds public terms, else 0
  const uint64_t* coef;   // c4, c3, c2, c1, c0, 1/2 at scale 60
  const uint64_t *c, *z, *power[4], *g, *h, *k;
  uint64_t *poly, *large;
};

using GeluKernel = void (*)(const GeluTerms&);

GeluKernel gelu_scalar();
GeluKernel gelu_avx2();
GeluKernel gelu_avx512();

namespace {

// Shares of the polynomial and of the linear part for the elements at i, which one V holds.
template <typename V>
void gelu_step(const GeluTerms& x, int64_t i) {
  const auto load = [i](const uint64_t* p) {
    V v;
    std::memcpy(&v, p + i, sizeof v);
    return v;
  };
  const auto store = [i](uint64_t* p, const V& v) { std::memcpy(p + i, &v, sizeof v); };
  const auto bit_times = [](const V& z, const V& plain, const V& hidden) {
    return z * plain + (1 - (z + z)) * hidden;
  };
  const uint64_t c4 = x.coef[0], c3 = x.coef[1], c2 = x.coef[2], c1 = x.coef[3], c0 = x.coef[4];
  const uint64_t half = x.coef[5];
  const V c = load(x.c), cc = c * c, ccc = cc * c, zero = V{};
  const V even[5] = {c4 * (cc * cc) + c2 * cc + half * c + c0, -4 * c4 * ccc - 2 * c2 * c - half,
                     6 * c4 * cc + c2, -4 * c4 * c, zero + c4};
  const V odd[4] = {c3 * ccc + c1 * c, -3 * c3 * cc - c1, 3 * c3 * c, zero - c3};
  V plain_even = x.first * even[0], plain_odd = x.first * odd[0];
  V low = zero, high = zero, mid = zero;
#pragma GCC unroll 5
  for (int j = 0; j < 5; ++j) {
    const V o = j < 4 ? odd[j < 4 ? j : 0] : zero;
    if (j > 0) {
      const V power = load(x.power[j - 1]);
      plain_even += even[j] * power;
      plain_odd += o * power;
    }
    low += (even[j] - o) * load(x.g + j * x.n);
    high += (even[j] + o) * load(x.h + j * x.n);
    if (j < 4) mid += o * load(x.k + j * x.n);
  }
  const V z0 = load(x.z), z1 = load(x.z + x.n), z2 = load(x.z + 2 * x.n);
  store(x.poly, bit_times(z0, plain_even - plain_odd, low) -
                    bit_times(z2, plain_even + plain_odd, high) +
                    bit_times(z1, plain_odd + plain_odd, mid + mid));
  store(x.large, bit_times(z2, x.first * c - load(x.power[0]), c * load(x.h) - load(x.h + x.n)));
}

template <typename V>
void gelu(const GeluTerms& x) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(uint64_t);
  int64_t i = 0;
  for (; i + kLanes <= x.n; i += kLanes) gelu_step<V>(x, i);
  for (; i < x.n; ++i) gelu_step<uint64_t>(x, i);
}

}  // namespace
}  // namespace privml
