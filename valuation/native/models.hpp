// Linear models along a walk: what the Python wrappers hand over, and the kernels of one
// instruction set. A walk is one sequence of rows; after each row with its mark set, the
// decisions of the model of all rows so far are written.
#pragma once

#include <cstdint>

namespace privml::valuation {

struct Table {
  const double* x;        // (n, dp) rows, zeros behind column d
  const double* target;   // (n, c) targets; class 0 or 1 for the logistic model
  const double* columns;  // (d, mp) validation rows, transposed, zeros behind row m
  int64_t d, dp, c, mp;
};

struct Walk {
  const int64_t* rows;  // (steps)
  const uint8_t* mark;  // (steps)
  int64_t steps, marks;
  double* out;  // (marks, c, mp)
};

struct Ridge {
  double alpha;
  int32_t free_intercept;
};

struct Logistic {
  double c;          // weight of the loss
  double tolerance;  // on the Newton decrement
  int32_t most_steps;
};

using RidgeKernel = void (*)(const Table&, const Walk&, const Ridge&, double* work);
using LogisticKernel = int32_t (*)(const Table&, const Walk&, const Logistic&, double* work);

// Doubles of working space.
inline int64_t ridge_space(const Table& t) {
  return t.d * t.dp + t.c * t.dp + 6 * t.dp + 3 * (t.c + 8) + (t.c + 1) * t.mp;
}
inline int64_t logistic_space(const Table& t, int64_t steps) {
  return t.d * t.dp + 8 * t.dp + 5 * (steps + 8);
}

// Whether a logistic walk runs in the span of its rows: many columns, and not far more rows.
constexpr int64_t kDirect = 64;  // columns up to which each Hessian is factorised
inline bool spanned(const Table& t, int64_t steps) { return t.d > kDirect && steps <= 4 * t.d; }

// Coordinates of such a walk with the intercept, padded.
inline int64_t span_width(const Table& t, int64_t steps) {
  return ((steps < t.d - 1 ? steps : t.d - 1) + 1 + 7) / 8 * 8;
}
inline int64_t span_space(const Table& t, int64_t steps) {
  const int64_t width = span_width(t, steps);
  return (steps + width + t.dp + 11) * width + 2 * t.dp + 8 * (steps + 8);
}

#define PRIVML_MODEL_KERNELS(isa)                                              \
  namespace isa {                                                              \
  void ridge_walk(const Table&, const Walk&, const Ridge&, double* work);      \
  int32_t logistic_walk(const Table&, const Walk&, const Logistic&, double* work); \
  }
PRIVML_MODEL_KERNELS(scalar)
PRIVML_MODEL_KERNELS(avx2)
PRIVML_MODEL_KERNELS(avx512)
#undef PRIVML_MODEL_KERNELS

}  // namespace privml::valuation
