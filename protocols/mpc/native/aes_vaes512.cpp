// AES-128-CTR with VAES on 512-bit registers: four blocks per register, eight registers in flight.
#include <immintrin.h>

#include <cstring>

#include "aes.hpp"

namespace privml {
namespace {

constexpr int kRegisters = 8;
constexpr int64_t kStride = 64 * kRegisters;

}  // namespace

void ctr_vaes512(const Stream& s, uint8_t* out, int64_t nbytes) {
  __m512i keys[kRoundKeys];
  for (int i = 0; i < kRoundKeys; ++i)
    keys[i] = _mm512_broadcast_i32x4(
        _mm_load_si128(reinterpret_cast<const __m128i*>(s.key.round[i])));
  const __m512i swap = _mm512_broadcast_i32x4(
      _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0));
  const int64_t nonce = int64_t(__builtin_bswap64(s.nonce)), first = int64_t(s.block0);
  // Little-endian counters in the upper halves; `swap` turns them to big-endian.
  __m512i count =
      _mm512_add_epi64(_mm512_set_epi64(first, nonce, first, nonce, first, nonce, first, nonce),
                       _mm512_set_epi64(3, 0, 2, 0, 1, 0, 0, 0));
  const __m512i four = _mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0);
  alignas(64) uint8_t last[kStride];
  while (nbytes > 0) {
    uint8_t* to = nbytes >= kStride ? out : last;
    __m512i x[kRegisters];
    for (int i = 0; i < kRegisters; ++i) {
      x[i] = _mm512_xor_si512(_mm512_shuffle_epi8(count, swap), keys[0]);
      count = _mm512_add_epi64(count, four);
    }
    for (int round = 1; round < kRoundKeys - 1; ++round)
      for (int i = 0; i < kRegisters; ++i) x[i] = _mm512_aesenc_epi128(x[i], keys[round]);
    for (int i = 0; i < kRegisters; ++i)
      _mm512_storeu_si512(to + 64 * i, _mm512_aesenclast_epi128(x[i], keys[kRoundKeys - 1]));
    if (to == last) std::memcpy(out, last, size_t(nbytes));
    out += kStride;
    nbytes -= kStride;
  }
}

}  // namespace privml
