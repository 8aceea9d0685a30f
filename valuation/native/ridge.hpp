// Ridge regression along a walk by recursive least squares, one rank-1 update per row.
//
// With P the inverse of (centred rows' Gram matrix + alpha I), w the weights, k rows so far and
// means xbar, ybar, a row (x, t) gives
//   f = sqrt(k / (k+1)); u = f (x - xbar); r = f (t - ybar)
//   g = P u / (1 + u'P u); w += g (r - u'w); P -= g (P u)'
// and decisions X_val w + ybar - xbar'w: exactly ridge regression with an unpenalised intercept.
// Without a free intercept f = 1 and the means stay 0. The pass that subtracts g (P u)' also
// multiplies with the next row's u, so P is read and written once per row.
#pragma once

#include <cmath>

#include "models.hpp"
#include "vec.hpp"

namespace privml::valuation {
namespace {

// P -= g pu'; next_pu = P next, over kBlock vectors of columns.
template <int kBlock>
inline void turn_block(double* p, int64_t d, int64_t dp, const double* g, const double* pu,
                       const double* next, double* next_pu) {
  Vec old[kBlock], even[kBlock], odd[kBlock];
  for (int b = 0; b < kBlock; ++b) {
    old[b] = load(pu + b * kLanes);
    even[b] = odd[b] = Vec{};
  }
  int64_t i = 0;
  for (; i + 1 < d; i += 2) {
    double* row = p + i * dp;
    for (int b = 0; b < kBlock; ++b) {
      const Vec first = load(row + b * kLanes) - g[i] * old[b];
      const Vec second = load(row + dp + b * kLanes) - g[i + 1] * old[b];
      store(row + b * kLanes, first);
      store(row + dp + b * kLanes, second);
      even[b] += next[i] * first;
      odd[b] += next[i + 1] * second;
    }
  }
  if (i < d) {
    double* row = p + i * dp;
    for (int b = 0; b < kBlock; ++b) {
      const Vec first = load(row + b * kLanes) - g[i] * old[b];
      store(row + b * kLanes, first);
      even[b] += next[i] * first;
    }
  }
  for (int b = 0; b < kBlock; ++b) store(next_pu + b * kLanes, even[b] + odd[b]);
}

inline void turn(double* p, int64_t d, int64_t dp, const double* g, const double* pu,
                 const double* next, double* next_pu) {
  int64_t at = 0;
  for (; at + 4 * kLanes <= dp; at += 4 * kLanes)
    turn_block<4>(p + at, d, dp, g, pu + at, next, next_pu + at);
  for (; at < dp; at += kLanes)
    turn_block<1>(p + at, d, dp, g, pu + at, next, next_pu + at);
}

class RidgeWalk {
 public:
  RidgeWalk(const Table& table, const Walk& walk, const Ridge& ridge, double* work)
      : t_(table), walk_(walk), free_(ridge.free_intercept != 0) {
    p_ = take(work, t_.d * t_.dp);
    w_ = take(work, t_.c * t_.dp);
    for (double** part : {&u_, &next_, &pu_, &next_pu_, &g_, &xbar_}) *part = take(work, t_.dp);
    for (double** part : {&r_, &next_r_, &ybar_}) *part = take(work, t_.c + 8);
    f_ = take(work, t_.c * t_.mp);
    v_ = take(work, t_.mp);
    for (int64_t i = 0; i < t_.d; ++i) p_[i * t_.dp + i] = 1.0 / ridge.alpha;
    // Adding to all decisions costs m d a row, computing them c m d a mark.
    running_ = t_.c > 1 && walk.steps < walk.marks * t_.c;
  }

  void run() {
    double* out = walk_.out;
    for (int64_t step = 0; step < walk_.steps; ++step) {
      if (step == 0) {
        prepare(0);
        for (int64_t i = 0; i < t_.dp; ++i) next_pu_[i] = next_[i] * p_[0];
      }
      std::swap(u_, next_);
      std::swap(pu_, next_pu_);
      std::swap(r_, next_r_);
      const double scale = 1.0 / (1.0 + dot(u_, pu_, t_.dp));
      for (int64_t i = 0; i < t_.dp; i += kLanes) store(g_ + i, scale * load(pu_ + i));
      learn();
      if (walk_.mark[step]) out = emit(out);
      if (step + 1 < walk_.steps) {
        prepare(step + 1);
        turn(p_, t_.d, t_.dp, g_, pu_, next_, next_pu_);
      }
    }
  }

 private:
  static double* take(double*& work, int64_t count) {
    double* const part = work;
    fill(part, 0.0, count);
    work += count;
    return part;
  }

  // Centre row number k of the walk; the sums of means are those of the rows before it.
  void prepare(int64_t k) {
    const double* x = t_.x + walk_.rows[k] * t_.dp;
    const double* target = t_.target + walk_.rows[k] * t_.c;
    if (!free_) {
      for (int64_t i = 0; i < t_.dp; i += kLanes) store(next_ + i, load(x + i));
      for (int64_t j = 0; j < t_.c; ++j) next_r_[j] = target[j];
      return;
    }
    const double f = std::sqrt(double(k) / double(k + 1)), share = 1.0 / double(k + 1);
    for (int64_t i = 0; i < t_.dp; i += kLanes) {
      const Vec mean = load(xbar_ + i), gap = load(x + i) - mean;
      store(next_ + i, f * gap);
      store(xbar_ + i, mean + share * gap);
    }
    for (int64_t j = 0; j < t_.c; ++j) {
      const double gap = target[j] - ybar_[j];
      next_r_[j] = f * gap;
      ybar_[j] += share * gap;
    }
  }

  void learn() {
    if (running_) decide(t_.columns, t_.mp, t_.d, g_, 0.0, v_);
    for (int64_t j = 0; j < t_.c; ++j) {
      double* w = w_ + j * t_.dp;
      const double error = r_[j] - dot(u_, w, t_.dp);
      add_scaled(w, error, g_, t_.dp);
      if (running_) add_scaled(f_ + j * t_.mp, error, v_, t_.mp);
    }
  }

  double* emit(double* out) {
    for (int64_t j = 0; j < t_.c; ++j, out += t_.mp) {
      const double* w = w_ + j * t_.dp;
      const double bias = free_ ? ybar_[j] - dot(xbar_, w, t_.dp) : 0.0;
      if (!running_) {
        decide(t_.columns, t_.mp, t_.d, w, bias, out);
        continue;
      }
      const double* f = f_ + j * t_.mp;
      for (int64_t at = 0; at < t_.mp; at += kLanes) store(out + at, load(f + at) + bias);
    }
    return out;
  }

  const Table& t_;
  const Walk& walk_;
  bool free_, running_;
  double *p_, *w_, *u_, *next_, *pu_, *next_pu_, *g_, *xbar_, *r_, *next_r_, *ybar_, *f_, *v_;
};

}  // namespace
}  // namespace privml::valuation
