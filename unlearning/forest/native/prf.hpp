// Keyed hash and node generator. Both are part of format version 1 of the forest and have
// published test vectors; a change here changes every model.
#pragma once

#include <cstdint>
#include <cstring>

namespace privml::forest {

struct SipKey {
  uint64_t k0 = 0, k1 = 0;

  static SipKey from_bytes(const uint8_t* bytes) {
    SipKey key;
    std::memcpy(&key.k0, bytes, 8);  // little-endian machines only, as the whole library
    std::memcpy(&key.k1, bytes + 8, 8);
    return key;
  }
};

// SipHash-2-4 over one domain byte followed by 64-bit fields. The domain byte shifts all fields by
// eight bits, so a block holds the top byte of one field and seven bytes of the next.
class SipHash {
 public:
  SipHash(const SipKey& key, uint8_t domain)
      : v0_(key.k0 ^ 0x736f6d6570736575ull),
        v1_(key.k1 ^ 0x646f72616e646f6dull),
        v2_(key.k0 ^ 0x6c7967656e657261ull),
        v3_(key.k1 ^ 0x7465646279746573ull),
        carry_(domain) {}

  SipHash& add(uint64_t field) {
    block(carry_ | field << 8);
    carry_ = field >> 56;
    length_ += 8;
    return *this;
  }

  uint64_t finish() {
    block(carry_ | uint64_t(length_ & 0xff) << 56);
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  static uint64_t rotl(uint64_t x, int b) { return x << b | x >> (64 - b); }

  void round() {
    v0_ += v1_, v1_ = rotl(v1_, 13), v1_ ^= v0_, v0_ = rotl(v0_, 32);
    v2_ += v3_, v3_ = rotl(v3_, 16), v3_ ^= v2_;
    v0_ += v3_, v3_ = rotl(v3_, 21), v3_ ^= v0_;
    v2_ += v1_, v1_ = rotl(v1_, 17), v1_ ^= v2_, v2_ = rotl(v2_, 32);
  }

  void block(uint64_t word) {
    v3_ ^= word;
    round();
    round();
    v0_ ^= word;
  }

  uint64_t v0_, v1_, v2_, v3_, carry_;
  uint32_t length_ = 1;
};

enum HashDomain : uint8_t { kDomainRoot = 0, kDomainChild = 1, kDomainMember = 2 };

inline uint64_t root_key(const SipKey& k, uint32_t tree) {
  return SipHash(k, kDomainRoot).add(tree).finish();
}

inline uint64_t child_key(const SipKey& k, uint64_t kappa, uint32_t side) {
  return SipHash(k, kDomainChild).add(kappa).add(side).finish();
}

inline uint64_t bounded(uint64_t h, uint64_t r) {
  return uint64_t((static_cast<unsigned __int128>(h) * r) >> 64);
}

// splitmix64 finaliser (Stafford's mix 13).
inline uint64_t fmix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

enum DrawTag : uint64_t { kDrawOrder = 1, kDrawThreshold = 2, kDrawMissing = 3, kDrawCategory = 4 };

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
constexpr uint32_t kMissingCode = 0xFFFFFFFFu;

// First half of a draw; shared by all values v of one (attribute, candidate).
inline uint64_t draw_base(uint64_t kappa, DrawTag tag, uint64_t a, uint64_t j) {
  return fmix(kappa ^ (uint64_t(tag) << 56) ^ (a << 24) ^ j);
}

inline uint64_t draw_value(uint64_t base, uint64_t v) { return fmix(base + kGolden * (v + 1)); }

inline uint64_t draw(uint64_t kappa, DrawTag tag, uint64_t a, uint64_t j) {
  return draw_value(draw_base(kappa, tag, a, j), 0);
}

// Side of a missing value at numeric candidate j, and of a code at categorical candidate j.
inline bool missing_right(uint64_t kappa, uint32_t a, uint32_t j) {
  return draw(kappa, kDrawMissing, a, j) >> 63;
}

inline bool category_right(uint64_t base, uint32_t code) { return draw_value(base, code) >> 63; }

}  // namespace privml::forest
