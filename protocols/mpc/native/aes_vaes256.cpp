// AES-128-CTR with VAES on 256-bit registers: two blocks per register, eight registers in flight.
#include <immintrin.h>

#include <cstring>

#include "aes.hpp"

namespace privml {
namespace {

constexpr int kRegisters = 8;
constexpr int64_t kStride = 32 * kRegisters;

}  // namespace

void ctr_vaes256(const Stream& s, uint8_t* out, int64_t nbytes) {
  __m256i keys[kRoundKeys];
  for (int i = 0; i < kRoundKeys; ++i)
    keys[i] = _mm256_broadcastsi128_si256(
        _mm_load_si128(reinterpret_cast<const __m128i*>(s.key.round[i])));
  const __m256i swap = _mm256_broadcastsi128_si256(
      _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0));
  const int64_t nonce = int64_t(__builtin_bswap64(s.nonce)), first = int64_t(s.block0);
  // Little-endian counters in the upper halves; `swap` turns them to big-endian.
  __m256i count = _mm256_add_epi64(_mm256_set_epi64x(first, nonce, first, nonce),
                                   _mm256_set_epi64x(1, 0, 0, 0));
  const __m256i two = _mm256_set_epi64x(2, 0, 2, 0);
  alignas(32) uint8_t last[kStride];
  while (nbytes > 0) {
    uint8_t* to = nbytes >= kStride ? out : last;
    __m256i x[kRegisters];
    for (int i = 0; i < kRegisters; ++i) {
      x[i] = _mm256_xor_si256(_mm256_shuffle_epi8(count, swap), keys[0]);
      count = _mm256_add_epi64(count, two);
    }
    for (int round = 1; round < kRoundKeys - 1; ++round)
      for (int i = 0; i < kRegisters; ++i) x[i] = _mm256_aesenc_epi128(x[i], keys[round]);
    for (int i = 0; i < kRegisters; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i,
                          _mm256_aesenclast_epi128(x[i], keys[kRoundKeys - 1]));
    if (to == last) std::memcpy(out, last, size_t(nbytes));
    out += kStride;
    nbytes -= kStride;
  }
}

}  // namespace privml
