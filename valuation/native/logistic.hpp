// Logistic regression along a walk: Newton's method, started from the model of the prefix before.
//
// Minimises (1/2)|w|^2 + C sum log(1 + exp(-s_i z_i)) over weights w and an unpenalised intercept,
// the last column, as scikit-learn does. With few columns each step solves with U'DU of the Hessian;
// with many it takes conjugate gradients, preconditioned by U'DU of an earlier Hessian of the same
// walk, which differs little. Halving keeps the objective falling. A prefix of one class has no
// finite minimum: its decisions are the class, +1 or -1, everywhere.
#pragma once

#include <cmath>

#include "models.hpp"
#include "newton.hpp"
#include "vec.hpp"

namespace privml::valuation {
namespace {

class LogisticWalk {
 public:
  LogisticWalk(const Table& table, const Walk& walk, const Logistic& settings, double* work)
      : t_(table), walk_(walk), s_(settings) {
    h_ = take(work, t_.d * t_.dp);
    for (double** part : {&w_, &gradient_, &step_, &scaled_, &rest_, &solved_, &way_, &image_})
      *part = take(work, t_.dp);
    for (double** part : {&z_, &dz_, &trial_, &weight_, &y_})
      *part = take(work, walk.steps + 8);
  }

  // Returns the number of prefixes that did not reach the tolerance.
  int32_t run() {
    int32_t failed = 0;
    double* out = walk_.out;
    for (int64_t step = 0; step < walk_.steps; ++step) {
      const double* x = row(step);
      y_[step] = t_.target[walk_.rows[step]];
      ones_ += y_[step] > 0.5;
      z_[step] = dot(x, w_, t_.dp);
      if (!walk_.mark[step]) continue;
      const int64_t count = step + 1;
      if (ones_ == 0 || ones_ == count) {
        fill(out, ones_ ? 1.0 : -1.0, t_.mp);
      } else {
        failed += !fit(count);
        decide(t_.columns, t_.mp, t_.d, w_, 0.0, out);
      }
      out += t_.mp;
    }
    return failed;
  }

 private:
  static double* take(double*& work, int64_t count) {
    double* const part = work;
    fill(part, 0.0, count);
    work += count;
    return part;
  }

  const double* row(int64_t i) const { return t_.x + walk_.rows[i] * t_.dp; }

  double penalty(const double* w) const {
    const double last = w[t_.d - 1];
    return 0.5 * (dot(w, w, t_.dp) - last * last);
  }

  // log(1 + exp(z)) - y z without overflow or cancellation, summed.
  double loss(const double* z, int64_t count) const {
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i)
      sum += against(z[i], y_[i]) + std::log1p(std::exp(-std::fabs(z[i])));
    return sum;
  }

  bool fit(int64_t count) {
    double value = penalty(w_) + s_.c * loss(z_, count);
    for (int32_t turn = 0; turn < s_.most_steps; ++turn) {
      slope(count);
      if (t_.d <= kDirect || stale_) {
        hessian(count);
        factorise();
        stale_ = false;
      }
      if (t_.d <= kDirect)
        back_solve(gradient_, step_);
      else
        iterate(count);
      const double decrement = dot(gradient_, step_, t_.dp);
      for (int64_t i = 0; i < count; ++i) dz_[i] = dot(row(i), step_, t_.dp);
      const bool last = decrement <= s_.tolerance * s_.tolerance * value;
      const bool near = close(decrement, value, dz_, count);
      const Move move{w_, step_, scaled_, t_.dp, z_, dz_, trial_, count};
      descend(move, decrement, last, near, value,
              [&] { return penalty(scaled_) + s_.c * loss(trial_, count); });
      std::swap(w_, scaled_);
      std::swap(z_, trial_);
      if (last) return true;
    }
    return false;
  }

  // Gradient, and the weights of the rows in the Hessian.
  void slope(int64_t count) {
    const int64_t d = t_.d, dp = t_.dp;
    for (int64_t i = 0; i < dp; ++i) gradient_[i] = i < d - 1 ? w_[i] : 0.0;
    for (int64_t i = 0; i < count; ++i) {
      const double e = std::exp(-std::fabs(z_[i]));
      weight_[i] = s_.c * e / ((1.0 + e) * (1.0 + e));
      add_scaled(gradient_, s_.c * excess(z_[i], e, y_[i]), row(i), dp);
    }
  }

  // Upper triangle of the Hessian, four rows of data at a time.
  void hessian(int64_t count) {
    const int64_t d = t_.d, dp = t_.dp;
    fill(h_, 0.0, d * dp);
    for (int64_t i = 0; i < d - 1; ++i) h_[i * dp + i] = 1.0;
    h_[(d - 1) * dp + d - 1] = kIntercept;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) add_four(i);
    for (; i < count; ++i) {
      const double* x = row(i);
      for (int64_t a = 0; a < d; ++a) {
        const int64_t from = a / kPad * kPad;
        add_scaled(h_ + a * dp + from, weight_[i] * x[a], x + from, dp - from);
      }
    }
  }

  void add_four(int64_t i) {
    const int64_t dp = t_.dp;
    const double *x0 = row(i), *x1 = row(i + 1), *x2 = row(i + 2), *x3 = row(i + 3);
    const double* weight = weight_ + i;
    for (int64_t a = 0; a < t_.d; ++a) {
      const double f0 = weight[0] * x0[a], f1 = weight[1] * x1[a];
      const double f2 = weight[2] * x2[a], f3 = weight[3] * x3[a];
      double* h = h_ + a * dp;
      for (int64_t b = a / kPad * kPad; b < dp; b += kLanes)
        store(h + b, load(h + b) + (f0 * load(x0 + b) + f1 * load(x1 + b)) +
                         (f2 * load(x2 + b) + f3 * load(x3 + b)));
    }
  }

  // U'DU in place: row k of h keeps D L'.
  void factorise() {
    const int64_t d = t_.d, dp = t_.dp;
    for (int64_t k = 0; k < d; ++k) {
      const double* pivot = h_ + k * dp;
      const double inverse = 1.0 / pivot[k];
      for (int64_t i = k + 1; i < d; ++i) {
        const int64_t from = i / kPad * kPad;
        add_scaled(h_ + i * dp + from, -pivot[i] * inverse, pivot + from, dp - from);
      }
    }
  }

  void back_solve(const double* right, double* x) const {
    const int64_t d = t_.d, dp = t_.dp;
    for (int64_t i = 0; i < dp; ++i) x[i] = right[i];
    for (int64_t k = 0; k < d; ++k) {
      const double* pivot = h_ + k * dp;
      const double f = -x[k] / pivot[k];
      for (int64_t i = k + 1; i < d; ++i) x[i] += f * pivot[i];
    }
    for (int64_t k = d; k-- > 0;) {
      const double* pivot = h_ + k * dp;
      double sums[4] = {0.0, 0.0, 0.0, 0.0};
      int64_t i = k + 1;
      for (; i + 4 <= d; i += 4)
        for (int lane = 0; lane < 4; ++lane) sums[lane] += pivot[i + lane] * x[i + lane];
      for (; i < d; ++i) sums[0] += pivot[i] * x[i];
      x[k] = (x[k] - ((sums[0] + sums[1]) + (sums[2] + sums[3]))) / pivot[k];
    }
  }

  // step = H^-1 gradient to a relative error of about kSolve, by conjugate gradients.
  void iterate(int64_t count) {
    const int64_t dp = t_.dp;
    fill(step_, 0.0, dp);
    for (int64_t i = 0; i < dp; ++i) rest_[i] = gradient_[i];
    back_solve(rest_, solved_);
    for (int64_t i = 0; i < dp; ++i) way_[i] = solved_[i];
    double size = dot(rest_, solved_, dp);
    const double enough = kSolve * kSolve * size;
    for (int32_t turn = 0; turn < kMostTurns && size > enough; ++turn) {
      multiply(count);
      const double length = size / dot(way_, image_, dp);
      add_scaled(step_, length, way_, dp);
      add_scaled(rest_, -length, image_, dp);
      back_solve(rest_, solved_);
      const double next = dot(rest_, solved_, dp), share = next / size;
      for (int64_t i = 0; i < dp; i += kLanes)
        store(way_ + i, load(solved_ + i) + share * load(way_ + i));
      size = next;
      stale_ = turn >= kPatience;
    }
  }

  // image = H way.
  void multiply(int64_t count) {
    const int64_t d = t_.d, dp = t_.dp;
    for (int64_t i = 0; i < dp; ++i) image_[i] = i < d - 1 ? way_[i] : 0.0;
    image_[d - 1] = kIntercept * way_[d - 1];
    for (int64_t i = 0; i < count; ++i)
      add_scaled(image_, weight_[i] * dot(row(i), way_, dp), row(i), dp);
  }

  static constexpr int32_t kMostTurns = 200;
  static constexpr int32_t kPatience = 10;       // turns after which a new factorisation repays
  static constexpr double kSolve = 1e-4;
  static constexpr double kIntercept = 1e-12;    // keeps a saturated intercept solvable

  const Table& t_;
  const Walk& walk_;
  const Logistic& s_;
  int64_t ones_ = 0;
  bool stale_ = true;  // the factorisation in h is missing or too old
  double *h_, *w_, *gradient_, *step_, *scaled_, *rest_, *solved_, *way_, *image_;
  double *z_, *dz_, *trial_, *weight_, *y_;
};

}  // namespace
}  // namespace privml::valuation
