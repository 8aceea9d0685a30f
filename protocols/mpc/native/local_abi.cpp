// C entry points of the local parts of non-linear functions.
#include "abi.hpp"
#include "local.hpp"

namespace privml {
namespace {

constexpr int32_t kMaxShift = 63;

LocalKernels kernels(int32_t isa) {
  return isa == kAvx512 ? local_avx512() : isa == kAvx2 ? local_avx2() : local_scalar();
}

int32_t refused(int32_t isa, int64_t n, int32_t shift) {
  if (n < 0 || shift < 0 || shift > kMaxShift) return kBadArgument;
  return isa_usable(isa) ? kOk : kUnsupported;
}

}  // namespace
}  // namespace privml

PRIVML_API int32_t privml_gelu(int32_t isa, int64_t n, int32_t rank, const uint64_t* coef,
                               const uint64_t* c, const uint64_t* bits, const uint64_t* r,
                               const uint64_t* r2, const uint64_t* r3, const uint64_t* r4,
                               const uint64_t* g, const uint64_t* h, const uint64_t* k,
                               uint64_t* poly, uint64_t* large) {
  if (int32_t code = privml::refused(isa, n, 0)) return code;
  privml::kernels(isa).gelu(
      {n, uint64_t(rank == 0), coef, c, bits, {r, r2, r3, r4}, g, h, k, poly, large});
  return privml::kOk;
}

PRIVML_API int32_t privml_gelu_low(int32_t isa, int64_t n, int32_t rank, const uint64_t* coef,
                                   const uint64_t* c, const uint64_t* bits, const uint64_t* r,
                                   const uint64_t* r2, const uint64_t* m, const uint64_t* h,
                                   uint64_t* out) {
  if (int32_t code = privml::refused(isa, n, 0)) return code;
  privml::kernels(isa).gelu_low({n, uint64_t(rank == 0), coef, c, bits, r, r2, m, h, out});
  return privml::kOk;
}

// The selection of nonlinear/maximum.py: n groups of four. Bit i of plane p of `bits` is the opened
// bit of pair p; entry (v, i, pattern) of `hit` and `hit_r` are shares of whether value v + 1 wins
// under that pattern of masks, and of that times its mask's difference from that of value 0.
PRIVML_API int32_t privml_maximum(int32_t isa, int64_t n, const uint64_t* x0, const uint64_t* c,
                                  const uint64_t* bits, const uint64_t* hit,
                                  const uint64_t* hit_r, uint64_t* out) {
  if (int32_t code = privml::refused(isa, n, 0)) return code;
  const int64_t words = (n + 63) / 64;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t* word = bits + i / 64;
    uint64_t z[6];
    for (int p = 0; p < 6; ++p) z[p] = (word[p * words] >> (i % 64)) & 1;
    // Pairs are 01, 02, 03, 12, 13, 23; the first of a pair wins if its bit is 1.
    const uint64_t pattern[3] = {z[0] | (z[3] ^ 1) << 1 | (z[4] ^ 1) << 2,
                                 z[1] | z[3] << 1 | (z[5] ^ 1) << 2,
                                 z[2] | z[4] << 1 | z[5] << 2};
    uint64_t sum = x0[i];
    for (int v = 0; v < 3; ++v) {
      const int64_t at = (v * n + i) * 8 + int64_t(pattern[v]);
      sum += (c[(v + 1) * n + i] - c[i]) * hit[at] - hit_r[at];
    }
    out[i] = sum;
  }
  return privml::kOk;
}

PRIVML_API int32_t privml_exp(int32_t isa, int64_t n, int32_t shift, const uint64_t* table,
                              const uint64_t* c, const uint64_t* wrapped, const uint64_t* clip,
                              const uint64_t* e, const uint64_t* be, const uint64_t* we,
                              const uint64_t* wbe, uint64_t* out) {
  if (int32_t code = privml::refused(isa, n, shift)) return code;
  privml::kernels(isa).exp({n, shift, table, c, wrapped, clip, {e, be, we, wbe}, out});
  return privml::kOk;
}

PRIVML_API int32_t privml_exp_low(int32_t isa, int64_t n, int32_t shift, const uint64_t* table,
                                  const uint64_t* c, const uint64_t* wrapped, const uint64_t* clip,
                                  const uint64_t* be, const uint64_t* wbe, const uint64_t* se,
                                  const uint64_t* wse, uint64_t* out) {
  if (int32_t code = privml::refused(isa, n, shift)) return code;
  privml::kernels(isa).exp_low({n, shift, table, c, wrapped, clip, {be, wbe, se, wse}, out});
  return privml::kOk;
}
