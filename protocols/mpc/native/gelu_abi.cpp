// C entry point of the GELU kernel.
#include "abi.hpp"
#include "gelu.hpp"

PRIVML_API int32_t privml_gelu(int32_t isa, int64_t n, int32_t rank, const uint64_t* coef,
                               const uint64_t* c, const uint64_t* z, const uint64_t* r,
                               const uint64_t* r2, const uint64_t* r3, const uint64_t* r4,
                               const uint64_t* g, const uint64_t* h, const uint64_t* k,
                               uint64_t* poly, uint64_t* large) {
  using namespace privml;
  if (n < 0) return kBadArgument;
  if (!isa_usable(isa)) return kUnsupported;
  const GeluKernel kernel =
      isa == kAvx512 ? gelu_avx512() : isa == kAvx2 ? gelu_avx2() : gelu_scalar();
  kernel({n, uint64_t(rank == 0), coef, c, z, {r, r2, r3, r4}, g, h, k, poly, large});
  return kOk;
}
