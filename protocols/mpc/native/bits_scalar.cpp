// Baseline bit kernels in plain C++.
#include "bits.hpp"
#include "tree_level.hpp"

namespace privml {
namespace {

uint32_t chunk(uint64_t word, int j) { return (word >> (4 * j)) & (j == kChunks - 1 ? 7 : 15); }

uint64_t parity16(uint32_t x) {
  x ^= x >> 8;
  x ^= x >> 4;
  return (0x6996u >> (x & 15)) & 1;
}

void onehot(const uint64_t* r, int64_t n, uint16_t* out) {
  const int64_t width = padded(n);
  for (int j = 0; j < kChunks; ++j) {
    uint16_t* row = out + j * width;
    for (int64_t i = 0; i < n; ++i) row[i] = uint16_t(1u << chunk(r[i], j));
    for (int64_t i = n; i < width; ++i) row[i] = 1;
  }
}

void compare(const uint64_t* c, int64_t n, int chunks, const uint16_t* w, uint64_t* lt,
             uint64_t* eq) {
  const int64_t width = padded(n), words = width / 64;
  for (int j = 0; j < chunks; ++j) {
    for (int64_t word = 0; word < words; ++word) {
      uint64_t below = 0, same = 0;
      for (int64_t i = 64 * word; i < n && i < 64 * word + 64; ++i) {
        const uint32_t v = chunk(c[i], j), row = w[j * width + i];
        below |= parity16(row & (0xFFFEu << v) & 0xFFFFu) << (i % 64);
        same |= uint64_t((row >> v) & 1) << (i % 64);
      }
      lt[j * words + word] = below;
      eq[j * words + word] = same;
    }
  }
}

void pack(const uint8_t* bits, int64_t n, uint64_t* out) {
  for (int64_t start = 0; start < n; start += 64) {
    uint64_t word = 0;
    for (int64_t i = start; i < n && i < start + 64; ++i) word |= uint64_t(bits[i] & 1) << (i % 64);
    out[start / 64] = word;
  }
}

void unpack(const uint64_t* words, int64_t n, uint64_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = (words[i / 64] >> (i % 64)) & 1;
}

void tops(const uint64_t* x, int64_t n, uint64_t* out) {
  for (int64_t start = 0; start < n; start += 64) {
    uint64_t word = 0;
    for (int64_t i = start; i < n && i < start + 64; ++i) word |= (x[i] >> 63) << (i % 64);
    out[start / 64] = word;
  }
}

}  // namespace

BitKernels bits_scalar() {
  return {onehot, compare, pack, unpack, tops, tree_masked, tree_level<uint64_t>};
}

}  // namespace privml
