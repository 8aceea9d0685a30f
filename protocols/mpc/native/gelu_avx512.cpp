// AVX-512 GELU kernel.
#include "gelu.hpp"

namespace privml {

namespace {
typedef uint64_t Lanes __attribute__((vector_size(64)));
}

GeluKernel gelu_avx512() { return gelu<Lanes>; }

}  // namespace privml
