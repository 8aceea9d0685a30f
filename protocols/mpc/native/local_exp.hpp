// exp on shares: a public exponential, looked up by opened digits, times a dealt one. Memory
// addresses depend on opened words only.
#pragma once

#include "local.hpp"

namespace privml {
namespace {

template <typename V>
V pick(const uint64_t* table, const V& at) {
  if constexpr (kLanes<V> == 1) {
    return table[at];
  } else {
    V out;
    for (int64_t l = 0; l < kLanes<V>; ++l) out[l] = table[at[l]];
    return out;
  }
}

// Shares are of E, of the clip bit's mask times E, of the wrap bit's mask times E, and of both.
template <typename V>
void exp_step(const ExpTerms& x, int64_t i) {
  const V field = load<V>(x.c + i) >> x.shift, coarse = (field >> 10) & 1023, fine = field & 1023;
  const V high = pick<V>(x.table, coarse), low = pick<V>(x.table + 2048, coarse);
  const V more = pick<V>(x.table + 1024, fine);
  const V rise = (high + ((high * more) >> 24)) >> 4, late = (low + ((low * more) >> 24)) >> 22;
  const V w = ones_at<V>(x.wrapped, i), b = ones_at<V>(x.clip, i), diff = rise - late;
  const V e = bit_times<V>(b, load<V>(x.share[0] + i), load<V>(x.share[1] + i));
  const V we = bit_times<V>(b, load<V>(x.share[2] + i), load<V>(x.share[3] + i));
  store<V>(x.out + i, (late + (w & diff)) * e + ((diff ^ w) - w) * we);
}

// With rho the clip bit's and w the wrap bit's mask, shares are of rho E, rho w E, (1 - 2 rho) E
// and (1 - 2 rho) w E.
template <typename V>
void exp_low_step(const ExpTerms& x, int64_t i) {
  const V digit = (load<V>(x.c + i) >> x.shift) & 4095;
  const V rise = pick<V>(x.table, digit), late = pick<V>(x.table + 4096, digit);
  const V w = ones_at<V>(x.wrapped, i), b = ones_at<V>(x.clip, i), diff = rise - late;
  const V e = load<V>(x.share[0] + i) + (b & load<V>(x.share[2] + i));
  const V we = load<V>(x.share[1] + i) + (b & load<V>(x.share[3] + i));
  store<V>(x.out + i, (late + (w & diff)) * e + ((diff ^ w) - w) * we);
}

template <typename V>
void exp(const ExpTerms& x) {
  each<V>(x, exp_step<V>, exp_step<uint64_t>);
}

template <typename V>
void exp_low(const ExpTerms& x) {
  each<V>(x, exp_low_step<V>, exp_low_step<uint64_t>);
}

}  // namespace
}  // namespace privml
