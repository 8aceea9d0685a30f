// C entry points of the nearest neighbours: checks and dispatch.
#include <cstdint>
#include <new>

#include "knn.hpp"

#define PRIVML_API extern "C" __attribute__((visibility("default")))

namespace privml::valuation {
namespace {

constexpr int32_t kOk = 0, kBadArgument = 1, kNoMemory = 2;
constexpr int32_t kAvx2 = 1, kAvx512 = 2;

template <typename T>
SearchKernel<T> kernel(int32_t isa) {
#if defined(__x86_64__)
  if (isa >= kAvx512 && __builtin_cpu_supports("avx512f")) return avx512::search;
  if (isa >= kAvx2 && __builtin_cpu_supports("avx2")) return avx2::search;
#endif
  (void)isa;
  return scalar::search;
}

template <typename T>
int32_t run(int32_t isa, const Search<T>& given) {
  const bool fits = given.n >= 1 && given.n <= INT32_MAX && given.d >= 1 && given.m >= 0 &&
                    given.keep >= 1 && given.keep <= given.n;
  if (!fits) return kBadArgument;
  try {
    kernel<T>(isa)(given);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
  return kOk;
}

// Adds the values of one validation row; see `shares` in knn_formulas.py.
void add_shares(const int32_t* order, int64_t keep, const int32_t* codes, int32_t truth,
                double beyond, const double* coefficient, double* values) {
  int64_t at = keep - 1;
  int32_t match = codes[order[at]] == truth;
  double value = match * coefficient[at] - beyond;
  values[order[at]] += value;
  while (--at >= 0) {
    const int32_t own = codes[order[at]] == truth;
    value += (own - match) * coefficient[at];
    match = own;
    values[order[at]] += value;
  }
}

}  // namespace
}  // namespace privml::valuation

PRIVML_API int32_t privml_knn_f64(int32_t isa, const double* panels, int64_t n, int64_t d,
                                  const double* tests, int64_t m, int64_t keep, int32_t* order,
                                  double* squares) {
  return privml::valuation::run<double>(isa, {panels, n, d, tests, m, keep, order, squares});
}

PRIVML_API int32_t privml_knn_f32(int32_t isa, const float* panels, int64_t n, int64_t d,
                                  const float* tests, int64_t m, int64_t keep, int32_t* order,
                                  float* squares) {
  return privml::valuation::run<float>(isa, {panels, n, d, tests, m, keep, order, squares});
}

// Adds to (n) values those of m validation rows: order (m, keep), beyond (m), coefficient (keep).
PRIVML_API int32_t privml_knn_shares(const int32_t* order, int64_t m, int64_t keep,
                                     const int32_t* codes, const int32_t* truth,
                                     const double* beyond, const double* coefficient,
                                     double* values) {
  if (m < 0 || keep < 1) return privml::valuation::kBadArgument;
  for (int64_t test = 0; test < m; ++test)
    privml::valuation::add_shares(order + test * keep, keep, codes, truth[test], beyond[test],
                                  coefficient, values);
  return privml::valuation::kOk;
}
