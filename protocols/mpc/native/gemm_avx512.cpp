// AVX-512 register tiles: 8 rows x 3 vectors, one multiply (vpmullq, vpmulld) and one add per
// vector of products. Both instructions take the same time whatever their operands.
#include <immintrin.h>

#include "gemm_blocked.hpp"

#define PRIVML_INLINE __attribute__((always_inline)) inline

namespace privml {
namespace {

template <typename T>
struct Lanes;

template <>
struct Lanes<uint64_t> {
  static constexpr int kWidth = 8;
  static __m512i set(uint64_t x) { return _mm512_set1_epi64(int64_t(x)); }
  static __m512i mul(__m512i x, __m512i y) { return _mm512_mullo_epi64(x, y); }
  static __m512i add(__m512i x, __m512i y) { return _mm512_add_epi64(x, y); }
  static __m512i load(uint32_t m, const void* p) { return _mm512_maskz_loadu_epi64(__mmask8(m), p); }
  static void store(uint32_t m, void* p, __m512i x) { _mm512_mask_storeu_epi64(p, __mmask8(m), x); }
};

template <>
struct Lanes<uint32_t> {
  static constexpr int kWidth = 16;
  static __m512i set(uint32_t x) { return _mm512_set1_epi32(int32_t(x)); }
  static __m512i mul(__m512i x, __m512i y) { return _mm512_mullo_epi32(x, y); }
  static __m512i add(__m512i x, __m512i y) { return _mm512_add_epi32(x, y); }
  static __m512i load(uint32_t m, const void* p) {
    return _mm512_maskz_loadu_epi32(__mmask16(m), p);
  }
  static void store(uint32_t m, void* p, __m512i x) {
    _mm512_mask_storeu_epi32(p, __mmask16(m), x);
  }
};

// Sums of one row of the tile, and of the rows below it: named values rather than an array, so
// that all of them live in registers.
template <typename T, int rows, int vectors>
struct Sums {
  using L = Lanes<T>;
  __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0;
  Sums<T, rows - 1, vectors> rest;

  PRIVML_INLINE void step(__m512i x0, __m512i x1, __m512i x2, const T* a) {
    const __m512i y = L::set(*a);
    s0 = L::add(s0, L::mul(x0, y));
    if constexpr (vectors > 1) s1 = L::add(s1, L::mul(x1, y));
    if constexpr (vectors > 2) s2 = L::add(s2, L::mul(x2, y));
    __asm__ volatile("" : "+v"(s0), "+v"(s1), "+v"(s2));
    rest.step(x0, x1, x2, a + 1);
  }

  // `mask` selects the columns of the last vector.
  PRIVML_INLINE void write(T* c, int64_t c_row, uint32_t mask, bool add) const {
    put(s0, c, vectors == 1 ? mask : ~0u, add);
    if constexpr (vectors > 1) put(s1, c + L::kWidth, vectors == 2 ? mask : ~0u, add);
    if constexpr (vectors > 2) put(s2, c + 2 * L::kWidth, mask, add);
    rest.write(c + c_row, c_row, mask, add);
  }

  PRIVML_INLINE static void put(__m512i sum, T* c, uint32_t mask, bool add) {
    L::store(mask, c, add ? L::add(sum, L::load(mask, c)) : sum);
  }
};

template <typename T, int vectors>
struct Sums<T, 0, vectors> {
  void step(__m512i, __m512i, __m512i, const T*) {}
  void write(T*, int64_t, uint32_t, bool) const {}
};

template <typename T>
struct Tile512 {
  using Word = T;
  using L = Lanes<T>;
  static constexpr int kVectors = 3;
  static constexpr int64_t kRows = 8, kCols = kVectors * L::kWidth;
  static constexpr int64_t kTurn = 8, kDepth = 192, kBlockCols = 8 * kCols;

  using Multiply = void (*)(int64_t k, const T* a, const T* b, T* c, int64_t c_row, uint32_t mask,
                            bool add);

  template <int rows, int vectors>
  static void tile(int64_t k, const T* a, const T* b, T* c, int64_t c_row, uint32_t mask,
                   bool add) {
    Sums<T, rows, vectors> sums;
    do {
      sums.step(_mm512_loadu_si512(b), _mm512_loadu_si512(b + L::kWidth),
                _mm512_loadu_si512(b + 2 * L::kWidth), a);
      a += kRows;
      b += kCols;
    } while (--k > 0);
    sums.write(c, c_row, mask, add);
  }

  static void multiply(int64_t rows, int64_t cols, int64_t k, const T* a, const T* b, T* c,
                       int64_t c_row, bool add) {
    static constexpr Multiply table[kRows][kVectors] = {
        {tile<1, 1>, tile<1, 2>, tile<1, 3>}, {tile<2, 1>, tile<2, 2>, tile<2, 3>},
        {tile<3, 1>, tile<3, 2>, tile<3, 3>}, {tile<4, 1>, tile<4, 2>, tile<4, 3>},
        {tile<5, 1>, tile<5, 2>, tile<5, 3>}, {tile<6, 1>, tile<6, 2>, tile<6, 3>},
        {tile<7, 1>, tile<7, 2>, tile<7, 3>}, {tile<8, 1>, tile<8, 2>, tile<8, 3>}};
    const int64_t vectors = (cols + L::kWidth - 1) / L::kWidth;
    const int64_t used = cols - (vectors - 1) * L::kWidth;
    table[rows - 1][vectors - 1](k, a, b, c, c_row, (1u << used) - 1, add);
  }

  static void turn(const T* src, int64_t stride, T* dst, int64_t width);
};

template <>
void Tile512<uint64_t>::turn(const uint64_t* src, int64_t stride, uint64_t* dst, int64_t width) {
  __m512i x[8], y[8];
  for (int i = 0; i < 8; ++i) x[i] = _mm512_loadu_si512(src + i * stride);
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
  }
  for (int i = 0; i < 2; ++i)
    for (int h = 0; h < 2; ++h) {
      x[4 * h + i] = _mm512_shuffle_i64x2(y[4 * h + i], y[4 * h + i + 2], 0x88);
      x[4 * h + i + 2] = _mm512_shuffle_i64x2(y[4 * h + i], y[4 * h + i + 2], 0xdd);
    }
  for (int i = 0; i < 4; ++i) {
    // x[i], x[4 + i]: 128-bit lanes (0, 2) or (1, 3) of rows 0..3 and of rows 4..7.
    const int even = (i & 1) + 2 * (i >> 1);
    _mm512_storeu_si512(dst + even * width, _mm512_shuffle_i64x2(x[i], x[4 + i], 0x88));
    _mm512_storeu_si512(dst + (even + 4) * width, _mm512_shuffle_i64x2(x[i], x[4 + i], 0xdd));
  }
}

template <>
void Tile512<uint32_t>::turn(const uint32_t* src, int64_t stride, uint32_t* dst, int64_t width) {
  for (int r = 0; r < 8; ++r)
    for (int p = 0; p < 8; ++p) dst[p * width + r] = src[r * stride + p];
}

}  // namespace

template <>
GemmKernel<uint64_t> gemm_avx512() {
  return blocked_kernel<Tile512<uint64_t>>();
}

template <>
GemmKernel<uint32_t> gemm_avx512() {
  return blocked_kernel<Tile512<uint32_t>>();
}

}  // namespace privml
