// Vectors of doubles of the width that the including file is compiled for. Rows of all matrices
// are padded with zeros to a multiple of kPad doubles, so no loop here has a remainder.
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#define PRIVML_VEC_BYTES 64
#elif defined(__AVX2__)
#define PRIVML_VEC_BYTES 32
#else
#define PRIVML_VEC_BYTES 16
#endif

namespace privml::valuation {
namespace {

constexpr int64_t kPad = 8;
constexpr int64_t kLanes = PRIVML_VEC_BYTES / 8;

typedef double Vec __attribute__((vector_size(PRIVML_VEC_BYTES)));
typedef double Loose __attribute__((vector_size(PRIVML_VEC_BYTES), aligned(8), may_alias));

inline Vec load(const double* from) { return *reinterpret_cast<const Loose*>(from); }
inline void store(double* to, Vec value) { *reinterpret_cast<Loose*>(to) = value; }

inline double dot(const double* a, const double* b, int64_t padded) {
  Vec first = {}, second = {};
  int64_t at = 0;
  for (; at + 2 * kLanes <= padded; at += 2 * kLanes) {
    first += load(a + at) * load(b + at);
    second += load(a + at + kLanes) * load(b + at + kLanes);
  }
  if (at < padded) first += load(a + at) * load(b + at);
  first += second;
  double sum = 0.0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += first[lane];
  return sum;
}

// y += f x
inline void add_scaled(double* y, double f, const double* x, int64_t padded) {
  for (int64_t at = 0; at < padded; at += kLanes) store(y + at, load(y + at) + f * load(x + at));
}

inline void fill(double* y, double value, int64_t count) {
  for (int64_t at = 0; at < count; ++at) y[at] = value;
}

// out[v] = bias + sum_j w[j] columns[j][v] for kBlock vectors of validation rows.
template <int kBlock>
inline void decide_block(const double* columns, int64_t mp, int64_t d, const double* w, double bias,
                         double* out) {
  Vec sum[kBlock];
  for (int b = 0; b < kBlock; ++b) sum[b] = Vec{} + bias;
  for (int64_t j = 0; j < d; ++j)
    for (int b = 0; b < kBlock; ++b) sum[b] += w[j] * load(columns + j * mp + b * kLanes);
  for (int b = 0; b < kBlock; ++b) store(out + b * kLanes, sum[b]);
}

// out (mp) = bias + columns' w, columns being the (d, mp) transposed validation rows.
inline void decide(const double* columns, int64_t mp, int64_t d, const double* w, double bias,
                   double* out) {
  const int64_t vectors = mp / kLanes;
  const int64_t blocks = (vectors + 7) / 8;
  int64_t at = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t size = (vectors - at + (blocks - block) - 1) / (blocks - block);
    const double* from = columns + at * kLanes;
    double* to = out + at * kLanes;
    switch (size) {
      case 1: decide_block<1>(from, mp, d, w, bias, to); break;
      case 2: decide_block<2>(from, mp, d, w, bias, to); break;
      case 3: decide_block<3>(from, mp, d, w, bias, to); break;
      case 4: decide_block<4>(from, mp, d, w, bias, to); break;
      case 5: decide_block<5>(from, mp, d, w, bias, to); break;
      case 6: decide_block<6>(from, mp, d, w, bias, to); break;
      case 7: decide_block<7>(from, mp, d, w, bias, to); break;
      default: decide_block<8>(from, mp, d, w, bias, to); break;
    }
    at += size;
  }
}

}  // namespace
}  // namespace privml::valuation
