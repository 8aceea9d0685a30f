// Baseline GELU kernel.
#include "gelu.hpp"

namespace privml {

GeluKernel gelu_scalar() { return gelu<uint64_t>; }

}  // namespace privml
