// C entry points of the bit kernels.
#include "abi.hpp"
#include "bits.hpp"

namespace privml {
namespace {

BitKernels kernels(int32_t isa) {
  return isa == kAvx512 ? bits_avx512() : isa == kAvx2 ? bits_avx2() : bits_scalar();
}

int32_t refused(int32_t isa, int64_t n) {
  return n < 0 ? kBadArgument : isa_usable(isa) ? kOk : kUnsupported;
}

}  // namespace
}  // namespace privml

PRIVML_API int32_t privml_chunk_onehot(int32_t isa, const uint64_t* r, int64_t n, uint16_t* out) {
  if (int32_t code = privml::refused(isa, n)) return code;
  privml::kernels(isa).onehot(r, n, out);
  return privml::kOk;
}

PRIVML_API int32_t privml_chunk_compare(int32_t isa, const uint64_t* c, int64_t n,
                                        const uint16_t* w, uint64_t* lt, uint64_t* eq) {
  if (int32_t code = privml::refused(isa, n)) return code;
  privml::kernels(isa).compare(c, n, w, lt, eq);
  return privml::kOk;
}

PRIVML_API int32_t privml_pack_bits(int32_t isa, const uint8_t* bits, int64_t n, uint64_t* out) {
  if (int32_t code = privml::refused(isa, n)) return code;
  privml::kernels(isa).pack(bits, n, out);
  return privml::kOk;
}

PRIVML_API int32_t privml_unpack_bits(int32_t isa, const uint64_t* words, int64_t n,
                                      uint64_t* out) {
  if (int32_t code = privml::refused(isa, n)) return code;
  privml::kernels(isa).unpack(words, n, out);
  return privml::kOk;
}
