// Rows of a walk in an orthonormal basis of their own span, and products with all of them.
#pragma once

#include <cmath>

#include "models.hpp"
#include "vec.hpp"

namespace privml::valuation {
namespace {

inline double* take(double*& work, int64_t count) {
  double* const part = work;
  fill(part, 0.0, count);
  work += count;
  return part;
}

// out[i] = row i . x for four rows at a time; padded widths, out has room for whole fours.
inline void multiply_rows(const double* rows, int64_t width, const double* x, int64_t count,
                          double* out, int64_t padded) {
  for (int64_t i = 0; i < count; i += 4) {
    const double* r0 = rows + i * width;
    const double *r1 = r0 + width, *r2 = r1 + width, *r3 = r2 + width;
    if (i + 4 > count) {
      for (; i < count; ++i) out[i] = dot(rows + i * width, x, padded);
      return;
    }
    Vec s0 = {}, s1 = {}, s2 = {}, s3 = {};
    for (int64_t at = 0; at < padded; at += kLanes) {
      const Vec v = load(x + at);
      s0 += load(r0 + at) * v;
      s1 += load(r1 + at) * v;
      s2 += load(r2 + at) * v;
      s3 += load(r3 + at) * v;
    }
    double t0 = 0.0, t1 = 0.0, t2 = 0.0, t3 = 0.0;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      t0 += s0[lane];
      t1 += s1[lane];
      t2 += s2[lane];
      t3 += s3[lane];
    }
    out[i] = t0, out[i + 1] = t1, out[i + 2] = t2, out[i + 3] = t3;
  }
}

// y += sum of factor[i] row i.
inline void add_rows_scaled(const double* rows, int64_t width, const double* factor, int64_t count,
                            double* y, int64_t padded) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const double* r0 = rows + i * width;
    const double *r1 = r0 + width, *r2 = r1 + width, *r3 = r2 + width;
    const double f0 = factor[i], f1 = factor[i + 1], f2 = factor[i + 2], f3 = factor[i + 3];
    for (int64_t at = 0; at < padded; at += kLanes)
      store(y + at, load(y + at) + (f0 * load(r0 + at) + f1 * load(r1 + at)) +
                        (f2 * load(r2 + at) + f3 * load(r3 + at)));
  }
  for (; i < count; ++i) add_scaled(y, factor[i], rows + i * width, padded);
}

// Row i of the basis is 1, for the intercept, and its coordinates; zeros behind them.
class SpanBasis {
 public:
  SpanBasis(const Table& table, const Walk& walk, int64_t width, double*& work)
      : t_(table), walk_(walk), width_(width) {
    rows_ = take(work, walk.steps * width);
    bare_ = take(work, table.dp);
    pivot_ = take(work, width);
  }

  const double* row(int64_t i) const { return rows_ + i * width_; }

  // Coordinates in use with the intercept, rounded up to whole vectors.
  int64_t used() const { return (rank_ + kPad) / kPad * kPad; }

  // Writes the coordinates of row `step`: forward substitution with the rows that brought the
  // coordinates, then what is left as a new coordinate, unless that is nothing but rounding.
  void place(int64_t step) {
    const double* x = t_.x + walk_.rows[step] * t_.dp;
    double* own = rows_ + step * width_;
    for (int64_t i = 0; i < t_.dp; ++i) bare_[i] = x[i];
    bare_[t_.d - 1] = 0.0;
    const double whole = dot(bare_, bare_, t_.dp);
    double rest = whole;
    for (int64_t j = 1; j <= rank_; ++j) {
      const int64_t at = int64_t(pivot_[j]);
      const double* bringer = rows_ + at * width_;
      const double product = dot(t_.x + walk_.rows[at] * t_.dp, bare_, t_.dp);
      own[j] = (product - dot(bringer, own, (j + kPad - 1) / kPad * kPad)) / bringer[j];
      rest -= own[j] * own[j];
    }
    if (rank_ + 1 < width_ && rest > kNothing * whole) {
      own[++rank_] = std::sqrt(rest);
      pivot_[rank_] = double(step);
    }
    own[0] = 1.0;
  }

  // Adds to the parts of the rows what makes up the weights v in the basis; v is used up.
  void back(double* v, double* part) const {
    for (int64_t j = rank_; j > 0; --j) {
      const int64_t at = int64_t(pivot_[j]);
      const double* bringer = rows_ + at * width_;
      const double share = v[j] / bringer[j];
      part[at] += share;
      add_scaled(v, -share, bringer, (j + kPad) / kPad * kPad);
    }
  }

 private:
  static constexpr double kNothing = 1e-14;

  const Table& t_;
  const Walk& walk_;
  int64_t width_, rank_ = 0;
  double *rows_, *bare_, *pivot_;
};

}  // namespace
}  // namespace privml::valuation
