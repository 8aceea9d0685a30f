// AES-128 counter mode keystream: shared key schedule layout and the kernels of the vector widths.
#pragma once

#include <cstdint>

namespace privml {

constexpr int kRoundKeys = 11;

struct alignas(16) AesKey {
  uint8_t round[kRoundKeys][16];
};

// Counter block i is nonce (8 bytes, big-endian) then block0 + i (8 bytes, big-endian).
struct Stream {
  AesKey key;
  uint64_t nonce, block0;
};

void aes_expand(const uint8_t* key, AesKey& out);
void ctr_aesni(const Stream& stream, uint8_t* out, int64_t nbytes);
void ctr_vaes256(const Stream& stream, uint8_t* out, int64_t nbytes);
void ctr_vaes512(const Stream& stream, uint8_t* out, int64_t nbytes);

}  // namespace privml
