// U'DU of I + sum of weight c c' (the first diagonal entry is tiny instead of 1): made anew, grown by
// one row, and solved with. Rows of U are kept times D, without the diagonal, zeros below it.
#pragma once

#include "vec.hpp"

namespace privml::valuation {
namespace {

class SpanFactor {
 public:
  SpanFactor(int64_t width, double first, double*& work) : width_(width), first_(first) {
    u_ = take(work, width * width);
    diagonal_ = take(work, width);
    inverse_ = take(work, width);
    spare_ = take(work, width);
    begin();
  }

  void make(const double* rows, const double* weight, int64_t count, int64_t q) {
    fill(u_, 0.0, q * width_);
    begin();
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) add_four(rows + i * width_, weight + i, q);
    for (; i < count; ++i) add_one(rows + i * width_, weight[i], q);
    for (int64_t k = 0; k < q; ++k) reduce(k, q);
  }

  // Adds weight c c'.
  void add(const double* c, double weight, int64_t q) {
    for (int64_t i = 0; i < q; ++i) spare_[i] = c[i];
    for (int64_t j = 0; j < q && weight > 0.0; ++j) {
      const double p = spare_[j], d = diagonal_[j], grown = d + weight * p * p;
      spare_[j] = 0.0;
      if (p == 0.0) continue;
      const double down = p * inverse_[j], keep = grown / d, gain = p * weight;
      double* u = u_ + j * width_;
      for (int64_t at = j / kPad * kPad; at < q; at += kLanes) {
        const Vec old = load(u + at), left = load(spare_ + at) - down * old;
        store(spare_ + at, left);
        store(u + at, keep * old + gain * left);
      }
      diagonal_[j] = grown;
      inverse_[j] = 1.0 / grown;
      weight *= d / grown;
    }
  }

  // Eight rows at a time: their own triangle entry by entry, then all that is right of it.
  void solve(const double* right, double* x, int64_t q) const {
    for (int64_t i = 0; i < q; ++i) x[i] = right[i];
    for (int64_t k = 0; k < q; k += kPad) {
      const double* u = u_ + k * width_;
      double f[kPad];
      for (int64_t a = 0; a < kPad; ++a) {
        f[a] = -x[k + a] * inverse_[k + a];
        for (int64_t b = a + 1; b < kPad; ++b) x[k + b] += f[a] * u[a * width_ + k + b];
      }
      for (int64_t at = k + kPad; at < q; at += kLanes) {
        Vec first = load(x + at), second = {};
        for (int64_t a = 0; a < kPad; a += 2) {
          first += f[a] * load(u + a * width_ + at);
          second += f[a + 1] * load(u + (a + 1) * width_ + at);
        }
        store(x + at, first + second);
      }
    }
    for (int64_t k = q - kPad; k >= 0; k -= kPad) {
      const double* u = u_ + k * width_;
      Vec sum[kPad] = {};
      for (int64_t at = k + kPad; at < q; at += kLanes) {
        const Vec v = load(x + at);
        for (int64_t a = 0; a < kPad; ++a) sum[a] += load(u + a * width_ + at) * v;
      }
      for (int64_t a = kPad; a-- > 0;) {
        double whole = 0.0;
        for (int64_t lane = 0; lane < kLanes; ++lane) whole += sum[a][lane];
        for (int64_t b = a + 1; b < kPad; ++b) whole += u[a * width_ + k + b] * x[k + b];
        x[k + a] = (x[k + a] - whole) * inverse_[k + a];
      }
    }
  }

 private:
  void begin() {
    fill(diagonal_, 1.0, width_);
    fill(inverse_, 1.0, width_);
    diagonal_[0] = first_;
    inverse_[0] = 1.0 / first_;
  }

  void add_one(const double* c, double weight, int64_t q) {
    for (int64_t a = 0; a < q; ++a) {
      const int64_t from = a / kPad * kPad;
      add_scaled(u_ + a * width_ + from, weight * c[a], c + from, q - from);
    }
  }

  void add_four(const double* c0, const double* weight, int64_t q) {
    const double *c1 = c0 + width_, *c2 = c1 + width_, *c3 = c2 + width_;
    for (int64_t a = 0; a < q; ++a) {
      const double f0 = weight[0] * c0[a], f1 = weight[1] * c1[a];
      const double f2 = weight[2] * c2[a], f3 = weight[3] * c3[a];
      double* u = u_ + a * width_;
      for (int64_t b = a / kPad * kPad; b < q; b += kLanes)
        store(u + b, load(u + b) + (f0 * load(c0 + b) + f1 * load(c1 + b)) +
                         (f2 * load(c2 + b) + f3 * load(c3 + b)));
    }
  }

  // Takes the rows before k out of row k.
  void reduce(int64_t k, int64_t q) {
    double* own = u_ + k * width_;
    const int64_t from = k / kPad * kPad;
    int64_t j = 0;
    for (; j + 4 <= k; j += 4) {
      const double* r0 = u_ + j * width_;
      const double *r1 = r0 + width_, *r2 = r1 + width_, *r3 = r2 + width_;
      const double f0 = r0[k] * inverse_[j], f1 = r1[k] * inverse_[j + 1];
      const double f2 = r2[k] * inverse_[j + 2], f3 = r3[k] * inverse_[j + 3];
      for (int64_t b = from; b < q; b += kLanes)
        store(own + b, load(own + b) - (f0 * load(r0 + b) + f1 * load(r1 + b)) -
                           (f2 * load(r2 + b) + f3 * load(r3 + b)));
    }
    for (; j < k; ++j) {
      const double* r = u_ + j * width_;
      add_scaled(own + from, -r[k] * inverse_[j], r + from, q - from);
    }
    diagonal_[k] += own[k];
    inverse_[k] = 1.0 / diagonal_[k];
    for (int64_t b = from; b <= k; ++b) own[b] = 0.0;
  }

  int64_t width_;
  double first_;
  double *u_, *diagonal_, *inverse_, *spare_;
};

}  // namespace
}  // namespace privml::valuation
