// Logistic regression along a walk with many columns, in the span of the rows seen so far.
//
// The weights of the optimum are a sum of rows, so each row is written in an orthonormal basis of
// the rows before it and itself. Row i then has a leading 1 for the intercept and at most i + 1
// coordinates, and Newton's method runs on those. Each system is solved by conjugate gradients,
// preconditioned by U'DU of the Hessian of an earlier prefix, to which every row since was added (a
// change of rank one).
#pragma once

#include <cmath>

#include "models.hpp"
#include "newton.hpp"
#include "span_basis.hpp"
#include "span_factor.hpp"
#include "vec.hpp"

namespace privml::valuation {
namespace {

class SpanWalk {
 public:
  SpanWalk(const Table& table, const Walk& walk, const Logistic& settings, double* work)
      : t_(table), walk_(walk), s_(settings), width_(span_width(table, walk.steps)),
        basis_(table, walk, width_, work), factor_(width_, kIntercept, work) {
    for (double** part : {&w_, &gradient_, &step_, &next_, &rest_, &solved_, &way_, &image_})
      *part = take(work, width_);
    for (double** part : {&z_, &dz_, &along_, &trial_, &weight_, &miss_, &y_, &small_})
      *part = take(work, walk.steps + kPad);
    weights_ = take(work, t_.dp);
  }

  // Returns the number of prefixes that did not reach the tolerance.
  int32_t run() {
    int32_t failed = 0;
    double* out = walk_.out;
    for (int64_t step = 0; step < walk_.steps; ++step) {
      basis_.place(step);
      y_[step] = t_.target[walk_.rows[step]];
      ones_ += y_[step] > 0.5;
      z_[step] = dot(basis_.row(step), w_, width_);
      if (!walk_.mark[step]) continue;
      const int64_t count = step + 1;
      if (ones_ == 0 || ones_ == count) {
        fill(out, ones_ ? 1.0 : -1.0, t_.mp);
      } else {
        failed += !fit(count);
        basis_.back(w_, weights_);
        weights_[t_.d - 1] = w_[0];
        decide(t_.columns, t_.mp, t_.d, weights_, 0.0, out);
      }
      out += t_.mp;
    }
    return failed;
  }

 private:
  int64_t used() const { return basis_.used(); }

  double penalty(const double* w) const { return 0.5 * (dot(w, w, used()) - w[0] * w[0]); }

  // Sum of log(1 + exp(z)) - y z over rows from..count; keeps exp(-|z|) for the slope. Logarithms of
  // factors 1 + e are taken of their product, where e is not so small that digits would be lost.
  double loss(const double* z, int64_t from, int64_t count) {
    double sum = 0.0, product = 1.0;
    for (int64_t i = from; i < count; ++i) {
      const double e = std::exp(-std::fabs(z[i]));
      small_[i] = e;
      sum += against(z[i], y_[i]);
      if (e < kSeries)
        sum += e * (1.0 - e * (1.0 / 2 - e * (1.0 / 3 - e * (1.0 / 4 - e * (1.0 / 5)))));
      else
        product *= 1.0 + e;
      if (product > 1e300) {
        sum += std::log(product);
        product = 1.0;
      }
    }
    return sum + std::log(product);
  }

  bool fit(int64_t count) {
    known_ += loss(z_, seen_, count);
    add_rows(count);
    double value = penalty(w_) + s_.c * known_;
    for (int32_t turn = 0; turn < s_.most_steps; ++turn) {
      slope(count);
      if (stale_) rebuild(count);
      const double limit = s_.tolerance * s_.tolerance * value;
      const double decrement = iterate(count, limit, value);
      const bool last = decrement <= limit, near = close(decrement, value, dz_, count);
      const Move move{w_, step_, next_, used(), z_, dz_, trial_, count};
      const bool judged = descend(move, decrement, last, near, value, [&] {
        known_ = loss(trial_, 0, count);
        return penalty(next_) + s_.c * known_;
      });
      if (!judged) known_ = loss(trial_, 0, count);
      std::swap(w_, next_);
      std::swap(z_, trial_);
      if (last) return true;
    }
    return false;
  }

  // Brings the rows since the last fit into the factorisation, or has it made anew.
  void add_rows(int64_t count) {
    if (stale_ || count - seen_ > kMostAdded) {
      stale_ = true;
    } else {
      for (int64_t i = seen_; i < count; ++i)
        factor_.add(basis_.row(i), spread(small_[i]), used());
    }
    seen_ = count;
  }

  void rebuild(int64_t count) {
    for (int64_t i = 0; i < count; ++i) weight_[i] = spread(small_[i]);
    factor_.make(basis_.row(0), weight_, count, used());
    stale_ = false;
    owed_ = 0;
  }

  // C p (1 - p) from exp(-|z|).
  double spread(double e) const { return s_.c * e / ((1.0 + e) * (1.0 + e)); }

  // C (p - y), from exp(-|z|) of the same z.
  double miss(int64_t i) const {
    return s_.c * excess(z_[i], small_[i], y_[i]);
  }

  // Gradient, and the weights of the rows in the Hessian.
  void slope(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      weight_[i] = spread(small_[i]);
      miss_[i] = miss(i);
    }
    for (int64_t i = 0; i < used(); ++i) gradient_[i] = w_[i];
    gradient_[0] = 0.0;
    add_rows_scaled(basis_.row(0), width_, miss_, count, gradient_, used());
  }

  // step = H^-1 gradient to a relative error of about kSolve, and dz, what it changes in z; returns
  // gradient' step. Ends at once where the preconditioner sees no more than a part of the limit.
  double iterate(int64_t count, double limit, double value) {
    const int64_t q = used();
    fill(dz_, 0.0, count);
    factor_.solve(gradient_, solved_, q);
    for (int64_t i = 0; i < q; ++i) {
      step_[i] = 0.0;
      rest_[i] = gradient_[i];
      way_[i] = solved_[i];
    }
    double size = dot(rest_, solved_, q);
    if (size <= kUnseen * limit) {
      std::swap(step_, solved_);
      multiply_rows(basis_.row(0), width_, step_, count, dz_, q);
      return size;
    }
    const double ease = std::fmin(kEarly, std::fmax(kSolve, std::sqrt(size / value)));
    const double enough = ease * ease * size;
    int32_t turn = 0;
    for (; turn < kMostTurns && size > enough; ++turn) {
      multiply(count);
      const double length = size / dot(way_, image_, q);
      add_scaled(step_, length, way_, q);
      add_scaled(rest_, -length, image_, q);
      add_scaled(dz_, length, along_, (count + kPad - 1) / kPad * kPad);
      factor_.solve(rest_, solved_, q);
      const double next = dot(rest_, solved_, q), share = next / size;
      for (int64_t i = 0; i < q; i += kLanes)
        store(way_ + i, load(solved_ + i) + share * load(way_ + i));
      size = next;
    }
    // An old factorisation costs further turns; a new one about as many as the rows and columns.
    owed_ += turn > kFresh ? turn - kFresh : 0;
    stale_ = owed_ * kTurns > count + q;
    return dot(gradient_, step_, q);
  }

  // image = H way; along = the rows' products with way.
  void multiply(int64_t count) {
    const int64_t q = used();
    multiply_rows(basis_.row(0), width_, way_, count, along_, q);
    for (int64_t i = 0; i < q; ++i) image_[i] = way_[i];
    image_[0] = kIntercept * way_[0];
    for (int64_t i = 0; i < count; ++i) miss_[i] = weight_[i] * along_[i];
    add_rows_scaled(basis_.row(0), width_, miss_, count, image_, q);
  }

  static constexpr int32_t kMostTurns = 200;
  static constexpr int64_t kFresh = 2, kTurns = 9;
  static constexpr int64_t kMostAdded = 16;      // rows that are added one by one
  static constexpr double kSolve = 1e-4, kEarly = 1e-1;
  static constexpr double kUnseen = 1e-2;
  static constexpr double kSeries = 1e-3;
  static constexpr double kIntercept = 1e-12;    // keeps a saturated intercept solvable

  const Table& t_;
  const Walk& walk_;
  const Logistic& s_;
  int64_t width_;
  SpanBasis basis_;
  SpanFactor factor_;
  int64_t ones_ = 0, seen_ = 0, owed_ = 0;  // rows of class 1; rows in the factorisation and in the loss
  double known_ = 0.0;           // loss of the rows seen
  bool stale_ = true;            // the factorisation is missing or too old
  double *w_, *gradient_, *step_, *next_, *rest_, *solved_, *way_, *image_;
  double *z_, *dz_, *along_, *trial_, *weight_, *miss_, *y_, *small_, *weights_;
};

}  // namespace
}  // namespace privml::valuation
