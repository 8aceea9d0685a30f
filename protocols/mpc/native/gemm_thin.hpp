// Product without packing, for few rows: B is read once, in order, as it lies in memory.
// Everything is in an unnamed namespace, because each instruction set compiles its own copy.
#pragma once

#include "gemm.hpp"

namespace privml {
namespace {

constexpr int64_t kThinColumns = 1024;  // of C per sweep, so that its row segments stay in cache
constexpr int64_t kThinDepth = 8;       // rows of B per sweep, so that C is touched seldom

inline int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

// c[0..n) += sum over 8 rows of B.
template <typename T>
void thin_sweep(const T* __restrict a, int64_t a_col, const T* __restrict b, int64_t b_row,
                T* __restrict c, int64_t n) {
  const T a0 = a[0], a1 = a[a_col], a2 = a[2 * a_col], a3 = a[3 * a_col];
  const T a4 = a[4 * a_col], a5 = a[5 * a_col], a6 = a[6 * a_col], a7 = a[7 * a_col];
  const T *b1 = b + b_row, *b2 = b1 + b_row, *b3 = b2 + b_row, *b4 = b3 + b_row;
  const T *b5 = b4 + b_row, *b6 = b5 + b_row, *b7 = b6 + b_row;
  for (int64_t j = 0; j < n; ++j)
    c[j] += a0 * b[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j] + a4 * b4[j] + a5 * b5[j] +
            a6 * b6[j] + a7 * b7[j];
}

// Any strides; columns first <= j < last of every row.
template <typename T>
void thin_columns(const Gemm<T>& g, int64_t first, int64_t last) {
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = first; j < last; ++j) g.c[i * g.c_row + j] = 0;
  int64_t p = 0;
  if (g.b_col == 1)
    for (; p + kThinDepth <= g.k; p += kThinDepth)
      for (int64_t i = 0; i < g.m; ++i)
        thin_sweep(g.a + i * g.a_row + p * g.a_col, g.a_col, g.b + p * g.b_row + first, g.b_row,
                   g.c + i * g.c_row + first, last - first);
  for (; p < g.k; ++p)
    for (int64_t i = 0; i < g.m; ++i) {
      const T x = g.a[i * g.a_row + p * g.a_col];
      const T* b = g.b + p * g.b_row;
      for (int64_t j = first; j < last; ++j) g.c[i * g.c_row + j] += x * b[j * g.b_col];
    }
}

template <typename T>
void thin_run(const Gemm<T>& g) {
  for (int64_t first = 0; first < g.n; first += kThinColumns)
    thin_columns(g, first, least(first + kThinColumns, g.n));
}

}  // namespace
}  // namespace privml
