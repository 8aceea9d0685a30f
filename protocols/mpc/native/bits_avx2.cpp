// AVX2 bit kernels. 32 words at a time are turned into their 8 byte planes; chunks select from
// 16-entry tables inside one register, so no memory address depends on a value.
#include <immintrin.h>

#include <cstring>

#include "bits.hpp"
#include "tree_level.hpp"

namespace privml {
namespace {

constexpr int kBlock = 64;

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
void store(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }

__m256i table(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint8_t e, uint8_t f, uint8_t g,
              uint8_t h, uint8_t i, uint8_t j, uint8_t k, uint8_t l, uint8_t m, uint8_t n,
              uint8_t o, uint8_t p) {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(char(a), char(b), char(c), char(d), char(e),
                                                   char(f), char(g), char(h), char(i), char(j),
                                                   char(k), char(l), char(m), char(n), char(o),
                                                   char(p)));
}

// plane[b] = byte b of 32 words in order.
void planes(const uint64_t* words, __m256i* plane) {
  const __m256i pairs = table(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  __m256i x[8], y[8];
  for (int i = 0; i < 8; ++i) {
    const __m128i low = _mm_loadu_si128((const __m128i*)(words + 2 * i));
    const __m128i high = _mm_loadu_si128((const __m128i*)(words + 16 + 2 * i));
    x[i] = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1),
                               pairs);
  }
  for (int i = 0; i < 4; ++i) {  // 8 x 8 transpose of 16-bit pairs inside each half
    y[i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
    y[i + 4] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
  }
  for (int h = 0; h < 8; h += 4)
    for (int i = 0; i < 2; ++i) {
      x[h + i] = _mm256_unpacklo_epi32(y[h + 2 * i], y[h + 2 * i + 1]);
      x[h + i + 2] = _mm256_unpackhi_epi32(y[h + 2 * i], y[h + 2 * i + 1]);
    }
  for (int h = 0; h < 8; h += 2) {
    plane[h] = _mm256_unpacklo_epi64(x[h], x[h + 1]);
    plane[h + 1] = _mm256_unpackhi_epi64(x[h], x[h + 1]);
  }
}

__m256i chunk(const __m256i* plane, int j) {
  const __m256i x = j % 2 ? _mm256_srli_epi16(plane[j / 2], 4) : plane[j / 2];
  return _mm256_and_si256(x, _mm256_set1_epi8(j == kChunks - 1 ? 7 : 15));
}

// 1 << chunk as 16-bit lanes: elements 0..15, then 16..31.
void power(__m256i chunks, __m256i* out) {
  const __m256i low = _mm256_shuffle_epi8(
      table(1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0, 0), chunks);
  const __m256i high = _mm256_shuffle_epi8(
      table(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128), chunks);
  const __m256i even = _mm256_unpacklo_epi8(low, high), odd = _mm256_unpackhi_epi8(low, high);
  out[0] = _mm256_permute2x128_si256(even, odd, 0x20);
  out[1] = _mm256_permute2x128_si256(even, odd, 0x31);
}

// A full block of words, zero past n.
const uint64_t* block(const uint64_t* words, int64_t left, uint64_t* spare) {
  if (left >= kBlock) return words;
  std::memset(spare, 0, kBlock * sizeof(uint64_t));
  std::memcpy(spare, words, size_t(left) * sizeof(uint64_t));
  return spare;
}

void onehot(const uint64_t* r, int64_t n, uint16_t* out) {
  const int64_t width = padded(n);
  uint64_t spare[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const uint64_t* from = block(r + i, n - i, spare);
    for (int half = 0; half < 2; ++half) {
      __m256i plane[8], bit[2];
      planes(from + 32 * half, plane);
      for (int j = 0; j < kChunks; ++j) {
        power(chunk(plane, j), bit);
        uint16_t* to = out + j * width + i + 32 * half;
        store(to, bit[0]);
        store(to + 16, bit[1]);
      }
    }
  }
}

// Bytes 0xff in lanes of odd parity.
__m256i odd(__m256i x) {
  const uint8_t y = 0xff;
  x = _mm256_xor_si256(x, _mm256_srli_epi16(x, 8));
  x = _mm256_xor_si256(x, _mm256_srli_epi16(x, 4));
  x = _mm256_and_si256(x, _mm256_set1_epi16(15));
  return _mm256_shuffle_epi8(table(0, y, y, 0, y, 0, 0, y, y, 0, 0, y, 0, y, y, 0), x);
}

// Bit i set where 16-bit lane i of a, then b, has a non-zero low byte 0xff.
uint32_t lanes(__m256i a, __m256i b) {
  const __m256i low = _mm256_set1_epi16(0xff);
  const __m256i both = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
  return uint32_t(_mm256_movemask_epi8(_mm256_permute4x64_epi64(both, 0xd8)));
}

// Results of 32 elements of one row.
void lookup(const uint16_t* w, const __m256i* bit, uint32_t* less, uint32_t* same) {
  __m256i higher[2], equal[2];
  for (int q = 0; q < 2; ++q) {
    const __m256i row = load(w + 16 * q), twice = _mm256_add_epi16(bit[q], bit[q]);
    const __m256i above = _mm256_sub_epi16(_mm256_setzero_si256(), twice);
    higher[q] = odd(_mm256_and_si256(row, above));
    equal[q] = _mm256_cmpeq_epi16(_mm256_and_si256(row, bit[q]), bit[q]);
  }
  *less = lanes(higher[0], higher[1]);
  *same = lanes(equal[0], equal[1]);
}

void compare(const uint64_t* c, int64_t n, int chunks, const uint16_t* w, uint64_t* lt,
             uint64_t* eq) {
  const int64_t width = padded(n), words = width / 64;
  uint64_t spare[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const uint64_t* from = block(c + i, n - i, spare);
    const uint64_t mask = live(n - i);
    __m256i low[8], high[8], bit[2];
    planes(from, low);
    planes(from + 32, high);
    for (int j = 0; j < chunks; ++j) {
      uint32_t less[2], same[2];
      for (int half = 0; half < 2; ++half) {
        power(chunk(half ? high : low, j), bit);
        lookup(w + j * width + i + 32 * half, bit, less + half, same + half);
      }
      lt[j * words + i / 64] = (less[0] | uint64_t(less[1]) << 32) & mask;
      eq[j * words + i / 64] = (same[0] | uint64_t(same[1]) << 32) & mask;
    }
  }
}

void pack(const uint8_t* bits, int64_t n, uint64_t* out) {
  for (int64_t i = 0; i < n; i += kBlock) {
    uint8_t spare[kBlock] = {};
    const uint8_t* from = bits + i;
    if (n - i < kBlock) from = static_cast<uint8_t*>(std::memcpy(spare, from, size_t(n - i)));
    const uint32_t low = uint32_t(_mm256_movemask_epi8(_mm256_slli_epi16(load(from), 7)));
    const uint32_t high = uint32_t(_mm256_movemask_epi8(_mm256_slli_epi16(load(from + 32), 7)));
    out[i / 64] = low | uint64_t(high) << 32;
  }
}

void unpack(const uint64_t* words, int64_t n, uint64_t* out) {
  const __m256i one = _mm256_set1_epi64x(1), four = _mm256_set1_epi64x(4);
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    const __m256i word = _mm256_set1_epi64x(int64_t(words[i / 64]));
    __m256i shift = _mm256_set_epi64x(3, 2, 1, 0);
    for (int k = 0; k < kBlock; k += 4, shift = _mm256_add_epi64(shift, four))
      store(out + i + k, _mm256_and_si256(_mm256_srlv_epi64(word, shift), one));
  }
  for (; i < n; ++i) out[i] = (words[i / 64] >> (i % 64)) & 1;
}

void tops(const uint64_t* x, int64_t n, uint64_t* out) {
  for (int64_t i = 0; i < n; i += kBlock) {
    uint64_t spare[kBlock], word = 0;
    const uint64_t* from = block(x + i, n - i, spare);
    for (int k = 0; k < kBlock; k += 4)
      word |= uint64_t(_mm256_movemask_pd(_mm256_castsi256_pd(load(from + k)))) << k;
    out[i / 64] = word;
  }
}

typedef uint64_t Lanes __attribute__((vector_size(32)));

}  // namespace

BitKernels bits_avx2() {
  return {onehot, compare, pack, unpack, tops, tree_masked, tree_level<Lanes>};
}

}  // namespace privml
