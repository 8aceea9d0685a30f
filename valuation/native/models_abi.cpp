// C entry points of the linear models: checks, dispatch, many walks per call.
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "models.hpp"

#define PRIVML_API extern "C" __attribute__((visibility("default")))

namespace privml::valuation {
namespace {

constexpr int32_t kOk = 0, kBadArgument = 1, kNoMemory = 2;
constexpr int32_t kAvx2 = 1, kAvx512 = 2;

bool valid(const Table& t) {
  return t.d >= 1 && t.dp >= t.d && t.dp % 8 == 0 && t.c >= 1 && t.mp >= 8 && t.mp % 8 == 0;
}

#if defined(__x86_64__)
int32_t usable(int32_t isa) {
  if (isa >= kAvx512 && __builtin_cpu_supports("avx512f")) return kAvx512;
  return isa >= kAvx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kAvx2 : 0;
}
#endif

RidgeKernel ridge_kernel(int32_t isa) {
#if defined(__x86_64__)
  isa = usable(isa);
  if (isa == kAvx512) return avx512::ridge_walk;
  if (isa == kAvx2) return avx2::ridge_walk;
#endif
  (void)isa;
  return scalar::ridge_walk;
}

LogisticKernel logistic_kernel(int32_t isa) {
#if defined(__x86_64__)
  isa = usable(isa);
  if (isa == kAvx512) return avx512::logistic_walk;
  if (isa == kAvx2) return avx2::logistic_walk;
#endif
  (void)isa;
  return scalar::logistic_walk;
}

}  // namespace
}  // namespace privml::valuation

using privml::valuation::Logistic;
using privml::valuation::Ridge;
using privml::valuation::Table;
using privml::valuation::Walk;

// One walk: out gets (marks, c, mp) decisions.
PRIVML_API int32_t privml_ridge_walk(int32_t isa, const Table* table, const Walk* walk,
                                     double alpha, int32_t free_intercept) {
  if (!privml::valuation::valid(*table) || !(alpha > 0)) return privml::valuation::kBadArgument;
  try {
    std::vector<double> work(std::size_t(privml::valuation::ridge_space(*table)));
    const Ridge ridge{alpha, free_intercept};
    privml::valuation::ridge_kernel(isa)(*table, *walk, ridge, work.data());
  } catch (const std::bad_alloc&) {
    return privml::valuation::kNoMemory;
  }
  return privml::valuation::kOk;
}

// One walk of a model of two classes; *failed gets the prefixes that missed the tolerance.
PRIVML_API int32_t privml_logistic_walk(int32_t isa, const Table* table, const Walk* walk, double c,
                                        double tolerance, int32_t most_steps, int32_t* failed) {
  if (!privml::valuation::valid(*table) || !(c > 0)) return privml::valuation::kBadArgument;
  try {
    const bool span = privml::valuation::spanned(*table, walk->steps);
    const int64_t space = span ? privml::valuation::span_space(*table, walk->steps)
                               : privml::valuation::logistic_space(*table, walk->steps);
    std::vector<double> work(static_cast<std::size_t>(space));
    const Logistic settings{c, tolerance, most_steps};
    *failed = privml::valuation::logistic_kernel(isa)(*table, *walk, settings, work.data());
  } catch (const std::bad_alloc&) {
    return privml::valuation::kNoMemory;
  }
  return privml::valuation::kOk;
}
