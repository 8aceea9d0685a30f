// Baseline ring product for any processor; the compiler vectorises its inner loop for the
// baseline instruction set.
#include "gemm_thin.hpp"

namespace privml {
namespace {

template <typename T>
void run(const Gemm<T>& g, void*) {
  thin_run(g);
}

size_t no_scratch(int64_t, int64_t, int64_t) { return 0; }

}  // namespace

template <>
GemmKernel<uint64_t> gemm_scalar() {
  return {1, 8, no_scratch, run<uint64_t>};
}

template <>
GemmKernel<uint32_t> gemm_scalar() {
  return {1, 16, no_scratch, run<uint32_t>};
}

}  // namespace privml
