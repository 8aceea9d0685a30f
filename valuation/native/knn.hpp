// Nearest neighbours: what the Python wrapper hands over, and the kernels of one instruction set.
// The order of training rows by distance is a function of each pair of rows alone: squares of
// differences are added feature by feature, never fused, and ties go to the smaller row number.
#pragma once

#include <cstdint>

namespace privml::valuation {

constexpr int64_t kPanel = 16;  // rows side by side, feature by feature

template <typename T>
struct Search {
  const T* panels;  // (ceil(n / 16), d, 16) training rows, zeros behind row n
  int64_t n, d;
  const T* tests;  // (m, d)
  int64_t m, keep;
  int32_t* order;  // (m, keep) nearest training rows
  T* squares;      // (m, keep) their squared distances, or null
};

template <typename T>
using SearchKernel = void (*)(const Search<T>&);

#define PRIVML_KNN_KERNELS(isa)          \
  namespace isa {                        \
  void search(const Search<double>&);    \
  void search(const Search<float>&);     \
  }
PRIVML_KNN_KERNELS(scalar)
PRIVML_KNN_KERNELS(avx2)
PRIVML_KNN_KERNELS(avx512)
#undef PRIVML_KNN_KERNELS

}  // namespace privml::valuation
