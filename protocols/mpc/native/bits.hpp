// Bit kernels: packing, one-hot chunks, chunk comparison, tree levels. The numpy twins in ops.py
// and boolean/level.py define them.
// Helpers are static, because each instruction set must compile its own copy.
#pragma once

#include <cstdint>

namespace privml {

constexpr int kChunks = 16;  // 4-bit chunks of a word; the top one keeps 3 bits

static constexpr int64_t padded(int64_t n) { return (n + 63) / 64 * 64; }

// Mask of the first `left` of 64 elements.
static constexpr uint64_t live(int64_t left) {
  return left >= 64 ? ~uint64_t(0) : (uint64_t(1) << left) - 1;
}

// Shapes and planes of one tree level; `recipe` as made in boolean/level.py.
struct TreeLevel {
  const int32_t* recipe;
  int64_t count, words, chunks, inputs, products, groups;
  uint64_t one;  // share of a plane of ones
  const uint64_t *lt, *eq, *opened, *masks, *dealt;
  uint64_t *new_lt, *new_eq;
};

// The kernels of one instruction set; one row of n elements, arrays shaped as in ops.py. `compare`
// looks at the lowest `chunks` chunks.
struct BitKernels {
  void (*onehot)(const uint64_t* r, int64_t n, uint16_t* out);
  void (*compare)(const uint64_t* c, int64_t n, int chunks, const uint16_t* w, uint64_t* lt,
                  uint64_t* eq);
  void (*pack)(const uint8_t* bits, int64_t n, uint64_t* out);
  void (*unpack)(const uint64_t* words, int64_t n, uint64_t* out);
  void (*tops)(const uint64_t* x, int64_t n, uint64_t* out);
  void (*masked)(const TreeLevel& level, uint64_t* out);  // reads recipe as positions of inputs
  void (*level)(const TreeLevel& level);
};

BitKernels bits_scalar();
BitKernels bits_avx2();
BitKernels bits_avx512();

}  // namespace privml
