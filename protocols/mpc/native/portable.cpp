// Stands in for the vector kernels on processors other than x86-64; never selected there,
// because cpu_features() reports none.
#include "bits.hpp"
#include "gemm.hpp"
#include "local.hpp"

namespace privml {

template <>
GemmKernel<uint64_t> gemm_avx2() {
  return gemm_scalar<uint64_t>();
}

template <>
GemmKernel<uint32_t> gemm_avx2() {
  return gemm_scalar<uint32_t>();
}

template <>
GemmKernel<uint64_t> gemm_avx512() {
  return gemm_scalar<uint64_t>();
}

template <>
GemmKernel<uint32_t> gemm_avx512() {
  return gemm_scalar<uint32_t>();
}

BitKernels bits_avx2() { return bits_scalar(); }
BitKernels bits_avx512() { return bits_scalar(); }

LocalKernels local_avx2() { return local_scalar(); }
LocalKernels local_avx512() { return local_scalar(); }

}  // namespace privml
