// Cache-blocked ring product around a register tile. `Tile` supplies
//   Word, kRows, kCols           register tile of C
//   turn(src, stride, dst, width)  dst[p * width + r] = src[r * stride + p] for a kTurn x kTurn block
//   multiply(rows, cols, k, a, b, c, c_row, add)   C (+)= A panel * B panel
// A panels hold kRows values per contraction index, B panels kCols, both padded with zeros.
// Loops, outermost first: rows of C (kBlockRows, A packed once), columns (kBlockCols), contraction
// (kDepth, B packed), B panels, A panels; a block of C stays in the second-level cache.
#pragma once

#include "gemm_thin.hpp"

namespace privml {
namespace {

template <typename Tile>
struct Blocked {
  using T = typename Tile::Word;
  static constexpr int64_t kRows = Tile::kRows, kCols = Tile::kCols, kTurn = Tile::kTurn;
  static constexpr int64_t kBlockRows = 256 / kRows * kRows;
  static constexpr int64_t kBlockCols = Tile::kBlockCols / kCols * kCols;
  static constexpr int64_t kDepth = Tile::kDepth;
  static constexpr int64_t kThinRows = 3;
  static constexpr int64_t kAhead = 8;  // rows of B fetched ahead of the packing

  static int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

  static size_t a_words(int64_t m, int64_t k) { return size_t(up(least(m, kBlockRows), kRows) * k); }

  static size_t scratch(int64_t m, int64_t k, int64_t n) {
    const int64_t cols = up(least(n, kBlockCols), kCols);
    return (up(a_words(m, k), 64) + size_t(cols * least(k, kDepth))) * sizeof(T);
  }

  // dst[p * width + r] = src[r * lane + p * step], r < lanes; lanes up to width become zero.
  static void pack(const T* src, int64_t lane, int64_t step, int64_t lanes, int64_t k, T* dst,
                   int64_t width) {
    int64_t p = 0;
    if (step == 1 && lanes == width && width % kTurn == 0)
      for (; p + kTurn <= k; p += kTurn)
        for (int64_t r = 0; r < width; r += kTurn)
          Tile::turn(src + r * lane + p, lane, dst + p * width + r, width);
    for (; p < k; ++p) {
      for (int64_t r = 0; r < lanes; ++r) dst[p * width + r] = src[r * lane + p * step];
      for (int64_t r = lanes; r < width; ++r) dst[p * width + r] = 0;
    }
  }

  static void pack_a(const Gemm<T>& g, int64_t first, int64_t rows, T* dst) {
    for (int64_t i = 0; i < rows; i += kRows)
      pack(g.a + (first + i) * g.a_row, g.a_row, g.a_col, least(kRows, rows - i), g.k,
           dst + i * g.k, kRows);
  }

  // Whole panels of rows that are contiguous: row by row, so that memory is read in order.
  static void copy_b(const T* src, int64_t row, int64_t panels, int64_t k, T* dst) {
    for (int64_t p = 0; p < k; ++p, src += row) {
      const char* ahead = reinterpret_cast<const char*>(src + kAhead * row);
      if (p + kAhead < k)
        for (int64_t x = 0; x < panels * kCols * int64_t(sizeof(T)); x += 64)
          __builtin_prefetch(ahead + x);
      for (int64_t q = 0; q < panels; ++q)
        __builtin_memcpy(dst + (q * k + p) * kCols, src + q * kCols, kCols * sizeof(T));
    }
  }

  static void pack_b(const Gemm<T>& g, int64_t p, int64_t k, int64_t first, int64_t cols, T* dst) {
    const T* src = g.b + p * g.b_row + first * g.b_col;
    const int64_t whole = g.b_col == 1 ? cols / kCols : 0;
    copy_b(src, g.b_row, whole, k, dst);
    for (int64_t j = whole * kCols; j < cols; j += kCols)
      pack(src + j * g.b_col, g.b_col, g.b_row, least(kCols, cols - j), k, dst + j * k, kCols);
  }

  static void panels(const Gemm<T>& g, const T* a, const T* b, int64_t k, int64_t row, int64_t rows,
                     int64_t col, int64_t cols, bool add) {
    for (int64_t j = 0; j < cols; j += kCols)
      for (int64_t i = 0; i < rows; i += kRows)
        Tile::multiply(least(kRows, rows - i), least(kCols, cols - j), k, a + i * g.k, b + j * k,
                       g.c + (row + i) * g.c_row + col + j, g.c_row, add);
  }

  static void run(const Gemm<T>& g, void* scratch) {
    if (g.k == 0 || (g.m <= kThinRows && g.b_col == 1)) return thin_run(g);
    T* a = static_cast<T*>(scratch);
    T* b = a + up(a_words(g.m, g.k), 64);
    for (int64_t row = 0; row < g.m; row += kBlockRows) {
      const int64_t rows = least(kBlockRows, g.m - row);
      pack_a(g, row, rows, a);
      for (int64_t col = 0; col < g.n; col += kBlockCols) {
        const int64_t cols = least(kBlockCols, g.n - col);
        for (int64_t p = 0; p < g.k; p += kDepth) {
          const int64_t k = least(kDepth, g.k - p);
          pack_b(g, p, k, col, cols, b);
          panels(g, a + p * kRows, b, k, row, rows, col, cols, p > 0);
        }
      }
    }
  }
};

template <typename Tile>
GemmKernel<typename Tile::Word> blocked_kernel() {
  return {Tile::kRows, Tile::kCols, Blocked<Tile>::scratch, Blocked<Tile>::run};
}

}  // namespace
}  // namespace privml
