// What the forms of logistic regression share.
#pragma once

#include <cmath>
#include <cstdint>

namespace privml::valuation {
namespace {

// Whether a full Newton step needs no test of the objective: it moves no log-odds by more than a
// tenth, and gains so little that the rounding of the objective would decide.
inline bool close(double decrement, double value, const double* dz, int64_t count) {
  if (decrement > 1e-10 * (1.0 + std::fabs(value))) return false;
  double most = 0.0;
  for (int64_t i = 0; i < count; ++i) most = std::fmax(most, std::fabs(dz[i]));
  return most <= 0.1;
}

// How far log-odds z go against the class y, 0 or 1: max(z, 0) - y z.
inline double against(double z, double y) { return std::fmax(y > 0.5 ? -z : z, 0.0); }

// p - y, from e = exp(-|z|). Where z is on the side of y it is tiny, and no difference of numbers
// near 1: a separable walk of a large C has its optimum there.
inline double excess(double z, double e, double y) {
  const bool one = y > 0.5, right = (z >= 0.0) == one;
  return (one ? -1.0 : 1.0) * (right ? e : 1.0) / (1.0 + e);
}

}  // namespace
}  // namespace privml::valuation
