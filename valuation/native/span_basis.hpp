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

// Row i of the basis is 1, for the intercept, and its coordinates; zeros behind them. The directions
// are kept as vectors of the columns: inner products of rows alone lose what is smaller than the
// root of the rounding, as columns or rows of mixed sizes have it.
class SpanBasis {
 public:
  SpanBasis(const Table& table, const Walk& walk, int64_t width, double*& work)
      : t_(table), walk_(walk), width_(width),
        most_(walk.steps < table.d - 1 ? walk.steps : table.d - 1) {
    rows_ = take(work, walk.steps * width);
    axes_ = take(work, width * table.dp);
    bare_ = take(work, table.dp);
  }

  const double* row(int64_t i) const { return rows_ + i * width_; }

  // Coordinates in use with the intercept, rounded up to whole vectors.
  int64_t used() const { return (rank_ + kPad) / kPad * kPad; }

  // Writes the coordinates of row `step`, then what is left of it as a new one, unless that is
  // nothing but rounding. While a pass leaves little, what it left is mostly rounding of the pass
  // and has to be made orthogonal in turn.
  void place(int64_t step) {
    const double* x = t_.x + walk_.rows[step] * t_.dp;
    double* own = rows_ + step * width_;
    for (int64_t i = 0; i < t_.dp; ++i) bare_[i] = x[i];
    bare_[t_.d - 1] = 0.0;
    own[0] = 1.0;
    const double whole = dot(bare_, bare_, t_.dp), nothing = std::fmax(kNothing * whole, kTiny);
    double rest = whole, before = 0.0;
    do {
      project(own + 1);
      before = rest;
      rest = dot(bare_, bare_, t_.dp);
    } while (rest > nothing && rest < kLittle * before);
    if (rank_ == most_ || !(rest > nothing)) return;
    const double length = std::sqrt(rest);
    double* axis = axes_ + rank_ * t_.dp;
    for (int64_t i = 0; i < t_.dp; ++i) axis[i] = bare_[i] / length;
    own[++rank_] = length;
  }

  // weights = the vector with coordinates v, in the columns of the table but for the intercept.
  void back(const double* v, double* weights) const {
    fill(weights, 0.0, t_.dp);
    add_rows_scaled(axes_, t_.dp, v + 1, rank_, weights, t_.dp);
  }

 private:
  // Moves what of bare lies in the span to the coordinates, a few directions at a time.
  void project(double* own) {
    double part[kPad];
    for (int64_t j = 0; j < rank_; j += kPad) {
      const int64_t count = rank_ - j < kPad ? rank_ - j : kPad;
      const double* axes = axes_ + j * t_.dp;
      multiply_rows(axes, t_.dp, bare_, count, part, t_.dp);
      for (int64_t k = 0; k < count; ++k) {
        own[j + k] += part[k];
        part[k] = -part[k];
      }
      add_rows_scaled(axes, t_.dp, part, count, bare_, t_.dp);
    }
  }

  static constexpr double kLittle = 1e-2;    // squared lengths, as both that follow
  static constexpr double kNothing = 1e-26;
  static constexpr double kTiny = 1e-280;    // squares below lose digits

  const Table& t_;
  const Walk& walk_;
  int64_t width_, most_, rank_ = 0;
  double *rows_, *axes_, *bare_;
};

}  // namespace
}  // namespace privml::valuation
