// Ring matrix product C = A * B mod 2^64 or 2^32: the problem record and the kernel table.
#pragma once

#include <cstddef>
#include <cstdint>

namespace privml {

// One product of row-major words with arbitrary element strides; C has unit column stride.
template <typename T>
struct Gemm {
  int64_t m, k, n;
  const T* a;
  int64_t a_row, a_col;
  const T* b;
  int64_t b_row, b_col;
  T* c;
  int64_t c_row;
};

// One instruction set's single-threaded implementation.
template <typename T>
struct GemmKernel {
  int64_t rows, cols;                                      // register tile
  size_t (*scratch)(int64_t m, int64_t k, int64_t n);      // bytes of 64-byte aligned space
  void (*run)(const Gemm<T>& product, void* scratch);
};

template <typename T>
GemmKernel<T> gemm_scalar();
template <typename T>
GemmKernel<T> gemm_avx2();
template <typename T>
GemmKernel<T> gemm_avx512();

}  // namespace privml
