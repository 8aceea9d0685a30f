// AES-128-CTR with AES-NI, eight blocks in flight; also the key schedule and the C entry point.
#include "aes.hpp"

#include <cstring>

#include "abi.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

namespace privml {
namespace {

constexpr int kLanes = 8;

template <int rcon>
__m128i next_key(__m128i key) {
  const __m128i word = _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, rcon), 0xff);
  key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
  key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
  return _mm_xor_si128(key, word);
}

__m128i counter(const Stream& s, uint64_t block) {
  return _mm_set_epi64x(int64_t(__builtin_bswap64(s.block0 + block)),
                        int64_t(__builtin_bswap64(s.nonce)));
}

template <int lanes>
void encrypt(const Stream& s, const __m128i* keys, uint64_t block, uint8_t* out) {
  __m128i x[lanes];
  for (int i = 0; i < lanes; ++i) x[i] = _mm_xor_si128(counter(s, block + i), keys[0]);
  for (int round = 1; round < kRoundKeys - 1; ++round)
    for (int i = 0; i < lanes; ++i) x[i] = _mm_aesenc_si128(x[i], keys[round]);
  for (int i = 0; i < lanes; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + i,
                     _mm_aesenclast_si128(x[i], keys[kRoundKeys - 1]));
}

}  // namespace

void aes_expand(const uint8_t* key, AesKey& out) {
  __m128i k[kRoundKeys];
  k[0] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(key));
  k[1] = next_key<0x01>(k[0]);
  k[2] = next_key<0x02>(k[1]);
  k[3] = next_key<0x04>(k[2]);
  k[4] = next_key<0x08>(k[3]);
  k[5] = next_key<0x10>(k[4]);
  k[6] = next_key<0x20>(k[5]);
  k[7] = next_key<0x40>(k[6]);
  k[8] = next_key<0x80>(k[7]);
  k[9] = next_key<0x1b>(k[8]);
  k[10] = next_key<0x36>(k[9]);
  std::memcpy(out.round, k, sizeof k);
}

void ctr_aesni(const Stream& s, uint8_t* out, int64_t nbytes) {
  __m128i keys[kRoundKeys];
  std::memcpy(keys, s.key.round, sizeof keys);
  uint64_t block = 0;
  for (; nbytes >= 16 * kLanes; nbytes -= 16 * kLanes, out += 16 * kLanes, block += kLanes)
    encrypt<kLanes>(s, keys, block, out);
  for (; nbytes >= 16; nbytes -= 16, out += 16, ++block) encrypt<1>(s, keys, block, out);
  if (nbytes > 0) {
    uint8_t last[16];
    encrypt<1>(s, keys, block, last);
    std::memcpy(out, last, size_t(nbytes));
  }
}

}  // namespace privml

PRIVML_API int32_t privml_aes128_ctr(int32_t isa, const uint8_t* key, uint64_t nonce,
                                     uint64_t block0, uint8_t* out, int64_t nbytes) {
  using namespace privml;
  if (nbytes < 0) return kBadArgument;
  const int32_t has = cpu_features();
  if (!isa_usable(isa) || !(has & kHasAesni)) return kUnsupported;
  Stream stream{{}, nonce, block0};
  aes_expand(key, stream.key);
  if (isa == kAvx512 && (has & kHasVaes512))
    ctr_vaes512(stream, out, nbytes);
  else if (isa != kScalar && (has & kHasVaes256))
    ctr_vaes256(stream, out, nbytes);
  else
    ctr_aesni(stream, out, nbytes);
  std::memset(&stream, 0, sizeof stream);
  __asm__ volatile("" : : "r"(&stream) : "memory");
  return kOk;
}

#else

PRIVML_API int32_t privml_aes128_ctr(int32_t, const uint8_t*, uint64_t, uint64_t, uint8_t*,
                                     int64_t) {
  return privml::kUnsupported;
}

#endif
