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

}  // namespace
}  // namespace privml::valuation
