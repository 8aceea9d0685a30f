// AVX-512 kernels of the local parts of non-linear functions.
#include "local_exp.hpp"
#include "local_gelu.hpp"

namespace privml {

namespace {
typedef uint64_t Lanes __attribute__((vector_size(64)));
}

LocalKernels local_avx512() { return {gelu<Lanes>, gelu_low<Lanes>, exp<Lanes>, exp_low<Lanes>}; }

}  // namespace privml
