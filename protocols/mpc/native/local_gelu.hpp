// GELU on shares: the quartic of exact rows and the parabola of reduced ones.
#pragma once

#include "local.hpp"

namespace privml {
namespace {

// Shares of the polynomial and of the linear part for the elements at i, which one V holds.
template <typename V>
void gelu_step(const GeluTerms& x, int64_t i) {
  const uint64_t c4 = x.coef[0], c3 = x.coef[1], c2 = x.coef[2], c1 = x.coef[3], c0 = x.coef[4];
  const uint64_t half = x.coef[5];
  const V c = load<V>(x.c + i), cc = c * c, ccc = cc * c, zero = V{};
  const V even[5] = {c4 * (cc * cc) + c2 * cc + half * c + c0, -4 * c4 * ccc - 2 * c2 * c - half,
                     6 * c4 * cc + c2, -4 * c4 * c, zero + c4};
  const V odd[4] = {c3 * ccc + c1 * c, -3 * c3 * cc - c1, 3 * c3 * c, zero - c3};
  V plain_even = x.first * even[0], plain_odd = x.first * odd[0];
  V low = zero, high = zero, mid = zero;
#pragma GCC unroll 5
  for (int j = 0; j < 5; ++j) {
    const V o = j < 4 ? odd[j < 4 ? j : 0] : zero;
    if (j > 0) {
      const V power = load<V>(x.power[j - 1] + i);
      plain_even += even[j] * power;
      plain_odd += o * power;
    }
    low += (even[j] - o) * load<V>(x.g + j * x.n + i);
    high += (even[j] + o) * load<V>(x.h + j * x.n + i);
    if (j < 4) mid += o * load<V>(x.k + j * x.n + i);
  }
  const int64_t words = (x.n + 63) / 64;
  const V z0 = ones_at<V>(x.bits, i), z1 = ones_at<V>(x.bits + words, i);
  const V z2 = ones_at<V>(x.bits + 2 * words, i);
  store<V>(x.poly + i, bit_times<V>(z0, plain_even - plain_odd, low) -
                           bit_times<V>(z2, plain_even + plain_odd, high) +
                           bit_times<V>(z1, plain_odd + plain_odd, mid + mid));
  const V plain = x.first * c - load<V>(x.power[0] + i);
  const V masked = c * load<V>(x.h + i) - load<V>(x.h + x.n + i);
  store<V>(x.large + i, bit_times<V>(z2, plain, masked));
}

// Shares of both pieces: m and h hold the middle bit's mask times 1, r, r^2 and the upper bit's
// times 1, r.
template <typename V>
void gelu_low_step(const GeluLowTerms& x, int64_t i) {
  const int64_t words = (x.n + 63) / 64;
  const V z = ones_at<V>(x.bits, i), above = ones_at<V>(x.bits + words, i);
  const V c = load<V>(x.c + i), r = load<V>(x.r + i), r2 = load<V>(x.r2 + i), one = V{} + x.first;
  const V m0 = bit_times<V>(z, one, load<V>(x.m + i));
  const V m1 = bit_times<V>(z, r, load<V>(x.m + x.n + i));
  const V m2 = bit_times<V>(z, r2, load<V>(x.m + 2 * x.n + i));
  const V h0 = bit_times<V>(above, one, load<V>(x.h + i));
  const V h1 = bit_times<V>(above, r, load<V>(x.h + x.n + i));
  const V parabola = (c * m0 - (m1 + m1)) * c + m2;
  const V slope = c * (m0 + (h0 + h0)) - (m1 + (h1 + h1));
  store<V>(x.out + i, parabola * x.coef[0] + slope * x.coef[1]);
}

template <typename V>
void gelu(const GeluTerms& x) {
  each<V>(x, gelu_step<V>, gelu_step<uint64_t>);
}

template <typename V>
void gelu_low(const GeluLowTerms& x) {
  each<V>(x, gelu_low_step<V>, gelu_low_step<uint64_t>);
}

}  // namespace
}  // namespace privml
