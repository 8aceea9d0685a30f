// C entry points of the bit kernels. Arrays hold `rows` rows one after the other, each padded to
// whole words of 64 bits by itself.
#include "abi.hpp"
#include "bits.hpp"

namespace privml {
namespace {

BitKernels kernels(int32_t isa) {
  return isa == kAvx512 ? bits_avx512() : isa == kAvx2 ? bits_avx2() : bits_scalar();
}

int32_t refused(int32_t isa, int64_t rows, int64_t n) {
  return rows < 0 || n < 0 ? kBadArgument : isa_usable(isa) ? kOk : kUnsupported;
}

int64_t words(int64_t n) { return padded(n) / 64; }

}  // namespace
}  // namespace privml

PRIVML_API int32_t privml_chunk_onehot(int32_t isa, const uint64_t* r, int64_t n, uint16_t* out) {
  if (int32_t code = privml::refused(isa, 1, n)) return code;
  privml::kernels(isa).onehot(r, n, out);
  return privml::kOk;
}

// Row i of c looks into w + i * w_step; a step of 0 lets all rows share one w.
PRIVML_API int32_t privml_chunk_compare(int32_t isa, const uint64_t* c, int64_t rows, int64_t n,
                                        int32_t chunks, const uint16_t* w, int64_t w_step,
                                        uint64_t* lt, uint64_t* eq) {
  if (int32_t code = privml::refused(isa, rows, n)) return code;
  if (chunks < 0 || chunks > privml::kChunks) return privml::kBadArgument;
  const auto compare = privml::kernels(isa).compare;
  const int64_t step = chunks * privml::words(n);
  for (int64_t i = 0; i < rows; ++i)
    compare(c + i * n, n, chunks, w + i * w_step, lt + i * step, eq + i * step);
  return privml::kOk;
}

PRIVML_API int32_t privml_pack_bits(int32_t isa, const uint8_t* bits, int64_t rows, int64_t n,
                                    uint64_t* out) {
  if (int32_t code = privml::refused(isa, rows, n)) return code;
  const auto pack = privml::kernels(isa).pack;
  for (int64_t i = 0; i < rows; ++i) pack(bits + i * n, n, out + i * privml::words(n));
  return privml::kOk;
}

PRIVML_API int32_t privml_unpack_bits(int32_t isa, const uint64_t* words, int64_t rows, int64_t n,
                                      uint64_t* out) {
  if (int32_t code = privml::refused(isa, rows, n)) return code;
  const auto unpack = privml::kernels(isa).unpack;
  for (int64_t i = 0; i < rows; ++i) unpack(words + i * privml::words(n), n, out + i * n);
  return privml::kOk;
}

PRIVML_API int32_t privml_top_bits(int32_t isa, const uint64_t* x, int64_t rows, int64_t n,
                                   uint64_t* out) {
  if (int32_t code = privml::refused(isa, rows, n)) return code;
  const auto tops = privml::kernels(isa).tops;
  for (int64_t i = 0; i < rows; ++i) tops(x + i * n, n, out + i * privml::words(n));
  return privml::kOk;
}

PRIVML_API int32_t privml_tree_masked(int32_t isa, const int32_t* at, int64_t count,
                                      int64_t words, int64_t chunks, int64_t inputs,
                                      const uint64_t* lt, const uint64_t* eq,
                                      const uint64_t* masks, uint64_t* out) {
  if (int32_t code = privml::refused(isa, count, words)) return code;
  privml::kernels(isa).masked(
      {.recipe = at, .count = count, .words = words, .chunks = chunks, .inputs = inputs,
       .products = 0, .groups = 0, .one = 0, .lt = lt, .eq = eq, .opened = nullptr,
       .masks = masks, .dealt = nullptr, .new_lt = nullptr, .new_eq = nullptr},
      out);
  return privml::kOk;
}

PRIVML_API int32_t privml_tree_level(int32_t isa, const int32_t* recipe, int64_t count,
                                     int64_t words, int64_t chunks, int64_t inputs,
                                     int64_t products, int64_t groups, int32_t rank,
                                     const uint64_t* lt, const uint64_t* eq,
                                     const uint64_t* opened, const uint64_t* masks,
                                     const uint64_t* dealt, uint64_t* new_lt, uint64_t* new_eq) {
  if (int32_t code = privml::refused(isa, count, words)) return code;
  const uint64_t one = rank == 0 ? ~uint64_t(0) : 0;
  privml::kernels(isa).level({recipe, count, words, chunks, inputs, products, groups, one, lt, eq,
                              opened, masks, dealt, new_lt, new_eq});
  return privml::kOk;
}
