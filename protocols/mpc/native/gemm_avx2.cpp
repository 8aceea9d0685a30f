// AVX2 register tiles. There is no 64-bit multiply, so a product mod 2^64 is
//   lo(a) lo(b) + 2^32 ((lo(a) hi(b) + hi(a) lo(b)) mod 2^32):
// vpmuludq gives the first term; vpmulld of a by b with its halves swapped gives both cross terms
// in 32-bit lanes, which are summed there and folded into the high half once at the end.
#include <immintrin.h>

#include "gemm_blocked.hpp"

// Keeps the sums in registers and the products in program order; without it the compiler gathers
// all products first, runs out of registers and spills sums inside the inner loop.
#define PRIVML_PIN(x, y) __asm__ volatile("" : "+x"(x), "+x"(y))
#define PRIVML_INLINE __attribute__((always_inline)) inline

namespace privml {
namespace {

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
void store(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }

// Writes a tile of `rows` x `cols` words that lie at `from` with `width` words per row.
template <typename T>
void write(const T* from, int64_t width, int64_t rows, int64_t cols, T* c, int64_t c_row,
           bool add) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols; ++j) {
      T& to = c[r * c_row + j];
      to = add ? to + from[r * width + j] : from[r * width + j];
    }
}

template <typename T>
struct Turn {
  static constexpr int64_t kTurn = 4;
  static void turn(const T* src, int64_t stride, T* dst, int64_t width) {
    for (int r = 0; r < 4; ++r)
      for (int p = 0; p < 4; ++p) dst[p * width + r] = src[r * stride + p];
  }
};

// Sums of one row of the tile, and of the rows below it.
template <int rows>
struct Sums64 {
  __m256i low = _mm256_setzero_si256(), cross = _mm256_setzero_si256();
  Sums64<rows - 1> rest;

  PRIVML_INLINE void step(__m256i x, __m256i swapped, const uint64_t* a) {
    const __m256i y = _mm256_set1_epi64x(int64_t(*a));
    low = _mm256_add_epi64(low, _mm256_mul_epu32(x, y));
    cross = _mm256_add_epi32(cross, _mm256_mullo_epi32(swapped, y));
    PRIVML_PIN(low, cross);
    rest.step(x, swapped, a + 1);
  }

  PRIVML_INLINE void fold(uint64_t* out) const {
    const __m256i both = _mm256_add_epi32(cross, _mm256_srli_epi64(cross, 32));
    store(out, _mm256_add_epi64(low, _mm256_slli_epi64(both, 32)));
    rest.fold(out + 4);
  }
};

template <>
struct Sums64<0> {
  void step(__m256i, __m256i, const uint64_t*) {}
  void fold(uint64_t*) const {}
};

struct Tile64 : Turn<uint64_t> {
  using Word = uint64_t;
  static constexpr int64_t kRows = 6, kCols = 4, kDepth = 256, kBlockCols = 128;

  template <int rows>
  static void tile(int64_t k, const Word* a, const Word* b, Word* out) {
    Sums64<rows> sums;
    do {
      const __m256i x = load(b);
      sums.step(x, _mm256_shuffle_epi32(x, 0xb1), a);
      a += kRows;
      b += kCols;
    } while (--k > 0);
    sums.fold(out);
  }

  static void multiply(int64_t rows, int64_t cols, int64_t k, const Word* a, const Word* b, Word* c,
                       int64_t c_row, bool add) {
    static constexpr void (*table[kRows])(int64_t, const Word*, const Word*, Word*) = {
        tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
    alignas(32) Word out[kRows * kCols];
    table[rows - 1](k, a, b, out);
    write(out, kCols, rows, cols, c, c_row, add);
  }
};

template <int rows>
struct Sums32 {
  __m256i left = _mm256_setzero_si256(), right = _mm256_setzero_si256();
  Sums32<rows - 1> rest;

  PRIVML_INLINE void step(__m256i x0, __m256i x1, const uint32_t* a) {
    const __m256i y = _mm256_set1_epi32(int32_t(*a));
    left = _mm256_add_epi32(left, _mm256_mullo_epi32(x0, y));
    right = _mm256_add_epi32(right, _mm256_mullo_epi32(x1, y));
    PRIVML_PIN(left, right);
    rest.step(x0, x1, a + 1);
  }

  PRIVML_INLINE void fold(uint32_t* out) const {
    store(out, left);
    store(out + 8, right);
    rest.fold(out + 16);
  }
};

template <>
struct Sums32<0> {
  void step(__m256i, __m256i, const uint32_t*) {}
  void fold(uint32_t*) const {}
};

struct Tile32 : Turn<uint32_t> {
  using Word = uint32_t;
  static constexpr int64_t kRows = 6, kCols = 16, kDepth = 256, kBlockCols = 256;

  template <int rows>
  static void tile(int64_t k, const Word* a, const Word* b, Word* out) {
    Sums32<rows> sums;
    do {
      sums.step(load(b), load(b + 8), a);
      a += kRows;
      b += kCols;
    } while (--k > 0);
    sums.fold(out);
  }

  static void multiply(int64_t rows, int64_t cols, int64_t k, const Word* a, const Word* b, Word* c,
                       int64_t c_row, bool add) {
    static constexpr void (*table[kRows])(int64_t, const Word*, const Word*, Word*) = {
        tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
    alignas(32) Word out[kRows * kCols];
    table[rows - 1](k, a, b, out);
    write(out, kCols, rows, cols, c, c_row, add);
  }
};

}  // namespace

template <>
GemmKernel<uint64_t> gemm_avx2() {
  return blocked_kernel<Tile64>();
}

template <>
GemmKernel<uint32_t> gemm_avx2() {
  return blocked_kernel<Tile32>();
}

}  // namespace privml
