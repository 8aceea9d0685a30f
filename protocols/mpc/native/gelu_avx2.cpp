// AVX2 GELU kernel.
#include "gelu.hpp"

namespace privml {

namespace {
typedef uint64_t Lanes __attribute__((vector_size(32)));
}

GeluKernel gelu_avx2() { return gelu<Lanes>; }

}  // namespace privml
