// AVX-512 bit kernels. 64 words at a time are turned into their 8 byte planes; a plane's low and
// high halves are two chunks, widened to 32 lanes of 16 bits for the variable shifts.
#include <immintrin.h>

#include <cstring>

#include "bits.hpp"
#include "tree_level.hpp"

namespace privml {
namespace {

constexpr int64_t kBlock = 64, kTile = 2048;

void transpose(__m512i* x) {
  __m512i y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
  }
  for (int h = 0; h < 8; h += 4)
    for (int i = h; i < h + 2; ++i) {
      x[i] = _mm512_shuffle_i64x2(y[i], y[i + 2], 0x88);
      x[i + 2] = _mm512_shuffle_i64x2(y[i], y[i + 2], 0xdd);
    }
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_shuffle_i64x2(x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_shuffle_i64x2(x[i], x[i + 4], 0xdd);
  }
  for (int i = 0; i < 8; ++i) x[i] = y[i];
}

// plane[b] = byte b of 64 words in order. Words past `left` count as zero.
void planes(const uint64_t* words, int64_t left, __m512i* plane) {
  alignas(64) static constexpr uint8_t kPairs[16] = {0, 8,  1, 9,  2, 10, 3, 11,
                                                     4, 12, 5, 13, 6, 14, 7, 15};
  const __m512i pairs = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)kPairs));
  // Word 8 * lane + b of the paired register goes to position 4 * b + lane.
  alignas(64) static constexpr uint16_t kGather[32] = {
      0, 8,  16, 24, 1, 9,  17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
      4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
  const __m512i gather = _mm512_load_si512(kGather);
  const uint64_t mask = live(left);
  for (int i = 0; i < 8; ++i) {
    const __m512i x = _mm512_maskz_loadu_epi64(__mmask8(mask >> (8 * i)), words + 8 * i);
    plane[i] = _mm512_permutexvar_epi16(gather, _mm512_shuffle_epi8(x, pairs));
  }
  transpose(plane);
}

// Byte planes of up to kTile words, so that the long rows are walked one after another.
struct Planes {
  alignas(64) uint8_t byte[8][kTile];
  int64_t used = 0;

  void fill(const uint64_t* words, int64_t left) {
    const int64_t size = padded(left) < kTile ? padded(left) : kTile;
    used = used < size ? size : used;
    for (int64_t i = 0; i < kTile && i < left; i += kBlock) {
      __m512i plane[8];
      planes(words + i, left - i, plane);
      for (int b = 0; b < 8; ++b) _mm512_store_si512(byte[b] + i, plane[b]);
    }
  }

  // Chunks j of elements i .. i + 31 as 16-bit lanes.
  __m512i chunk(int j, int64_t i) const {
    const __m512i x = _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i*)(byte[j / 2] + i)));
    return _mm512_and_si512(_mm512_srl_epi16(x, _mm_cvtsi32_si128(j % 2 * 4)),
                            _mm512_set1_epi16(j == kChunks - 1 ? 7 : 15));
  }

  ~Planes() {
    for (auto& row : byte) std::memset(row, 0, size_t(used));
    __asm__ volatile("" : : "r"(byte) : "memory");
  }
};

void onehot(const uint64_t* r, int64_t n, uint16_t* out) {
  const int64_t width = padded(n);
  const __m512i one = _mm512_set1_epi16(1);
  Planes tile;
  for (int64_t start = 0; start < n; start += kTile) {
    tile.fill(r + start, n - start);
    const int64_t size = width - start < kTile ? width - start : kTile;
    for (int j = 0; j < kChunks; ++j)
      for (int64_t i = 0; i < size; i += 32)
        _mm512_storeu_si512(out + j * width + start + i,
                            _mm512_sllv_epi16(one, tile.chunk(j, i)));
  }
}

// Bit i = parity of lane i.
uint32_t parity(__m512i x) {
  x = _mm512_xor_si512(x, _mm512_srli_epi16(x, 8));
  x = _mm512_xor_si512(x, _mm512_srli_epi16(x, 4));
  x = _mm512_and_si512(x, _mm512_set1_epi16(15));
  x = _mm512_srlv_epi16(_mm512_set1_epi16(0x6996), x);
  return _mm512_test_epi16_mask(x, _mm512_set1_epi16(1));
}

// Results of 32 elements: their chunks and the row's 32 entries.
void lookup(__m512i chunk, const uint16_t* row, uint32_t* less, uint32_t* same) {
  const __m512i x = _mm512_loadu_si512(row);
  const __m512i above = _mm512_sllv_epi16(_mm512_set1_epi16(int16_t(0xFFFE)), chunk);
  *less = parity(_mm512_and_si512(x, above));
  *same = _mm512_test_epi16_mask(x, _mm512_sllv_epi16(_mm512_set1_epi16(1), chunk));
}

void compare(const uint64_t* c, int64_t n, int chunks, const uint16_t* w, uint64_t* lt,
             uint64_t* eq) {
  const int64_t width = padded(n), words = width / 64;
  Planes tile;
  for (int64_t start = 0; start < n; start += kTile) {
    tile.fill(c + start, n - start);
    const int64_t size = width - start < kTile ? width - start : kTile;
    for (int j = 0; j < chunks; ++j)
      for (int64_t i = 0; i < size; i += kBlock) {
        const uint16_t* row = w + j * width + start + i;
        uint32_t less[2], same[2];
        lookup(tile.chunk(j, i), row, less, same);
        lookup(tile.chunk(j, i + 32), row + 32, less + 1, same + 1);
        const uint64_t mask = live(n - start - i);
        const int64_t word = j * words + (start + i) / 64;
        lt[word] = (less[0] | uint64_t(less[1]) << 32) & mask;
        eq[word] = (same[0] | uint64_t(same[1]) << 32) & mask;
      }
  }
}

void pack(const uint8_t* bits, int64_t n, uint64_t* out) {
  const __m512i one = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < n; i += kBlock)
    out[i / 64] =
        _mm512_test_epi8_mask(_mm512_maskz_loadu_epi8(__mmask64(live(n - i)), bits + i), one);
}

void unpack(const uint64_t* words, int64_t n, uint64_t* out) {
  const __m512i one = _mm512_set1_epi64(1);
  for (int64_t i = 0; i < n; i += kBlock) {
    const uint64_t word = words[i / 64], mask = live(n - i);
    for (int k = 0; k < 8; ++k)
      _mm512_mask_storeu_epi64(out + i + 8 * k, __mmask8(mask >> (8 * k)),
                               _mm512_maskz_mov_epi64(__mmask8(word >> (8 * k)), one));
  }
}

void tops(const uint64_t* x, int64_t n, uint64_t* out) {
  for (int64_t i = 0; i < n; i += kBlock) {
    const uint64_t mask = live(n - i);
    uint64_t word = 0;
    for (int k = 0; k < kBlock; k += 8) {
      const __m512i part = _mm512_maskz_loadu_epi64(__mmask8(mask >> k), x + i + k);
      word |= uint64_t(_mm512_movepi64_mask(part)) << k;
    }
    out[i / 64] = word;
  }
}

typedef uint64_t Lanes __attribute__((vector_size(64)));

}  // namespace

BitKernels bits_avx512() {
  return {onehot, compare, pack, unpack, tops, tree_masked, tree_level<Lanes>};
}

}  // namespace privml
