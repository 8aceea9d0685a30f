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

// A Newton step at weights w and log-odds z, and where it leads.
struct Move {
  const double *w, *step;
  double* next;
  int64_t size;
  const double *z, *dz;
  double* trial;
  int64_t count;
};

// Goes the way of a step, halved until `objective`, of the point reached, falls enough. True if the
// point was judged, and `value` is then its objective; a `last` step is gone whole and not judged,
// nor is what is left of a way halved 40 times. A step that is `near` needs no fall.
template <class Objective>
bool descend(const Move& m, double decrement, bool last, bool near, double& value,
             Objective objective) {
  double length = 1.0;
  for (int32_t halving = 0;; ++halving, length *= 0.5) {
    for (int64_t i = 0; i < m.count; ++i) m.trial[i] = m.z[i] - length * m.dz[i];
    for (int64_t i = 0; i < m.size; ++i) m.next[i] = m.w[i] - length * m.step[i];
    if (last || halving == 40) return false;
    const double found = objective();
    if (near || found <= value - 1e-4 * length * decrement + 1e-13 * std::fabs(value)) {
      value = found;
      return true;
    }
  }
}

}  // namespace
}  // namespace privml::valuation
