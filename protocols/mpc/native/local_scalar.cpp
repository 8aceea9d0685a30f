// Baseline kernels of the local parts of non-linear functions.
#include "local_exp.hpp"
#include "local_gelu.hpp"

namespace privml {

LocalKernels local_scalar() {
  return {gelu<uint64_t>, gelu_low<uint64_t>, exp<uint64_t>, exp_low<uint64_t>};
}

}  // namespace privml
