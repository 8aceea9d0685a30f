// Inner loops that exist once in portable form and once with AVX2. Both give the same bits: they
// count, compare and select; every float64 score is computed by the same portable code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace privml::forest {

constexpr uint32_t kLane = 8;   // candidate arrays are padded to this
constexpr uint32_t kChunk = 64; // row buffers are padded to this, with NaN

constexpr uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }

enum SlotKind : uint8_t { kNumeric = 0, kCategorical = 1, kTwoValued = 2 };

// What is kept per slot beside the columns below.
struct SlotInfo {
  uint32_t lane;     // first lane
  uint32_t missing;  // rows without a value; for categories missing is a code like others
  uint16_t lanes;    // lanes reserved, a multiple of kLane but for two-valued slots
  uint16_t used;     // candidates in use from the first lane on
  uint16_t extra;    // categorical: the one candidate beyond s, in lane + s; 0 if none
  SlotKind kind;
  uint8_t unused;
};
static_assert(sizeof(SlotInfo) == 16);

// Up to 64 slots by columns, padded to kSlots. mn and mx: smallest and largest present value as
// float bits (categories: codes), at_mn and at_mx: how many rows hold them. inside: all bits set if
// a value between them changes neither; simple: all bits set unless categorical or padding.
struct SlotColumns {
  const uint32_t* attribute;
  const uint32_t *mn, *mx;
  uint32_t *at_mn, *at_mx;
  const uint32_t *inside, *simple;
  const SlotInfo* info;
  uint32_t count;
  uint64_t pairs;  // which slots are two-valued
};
constexpr uint32_t kSlots = 4;

// Smallest and largest present value, how often each occurs, how many values are missing.
struct Range {
  float mn, mx;
  uint32_t at_mn, at_mx, missing;
};

// Up to this many rows all products of the float32 pre-screen fit 32 bits.
constexpr uint32_t kScreenRows = 46340;

template <class Count>
struct CountKernels {
  // left[j] = rows with x <= w[j]; by_class[c * stride + j] = those of them in masks[c * words..].
  void (*count)(const float* x, uint32_t n, const float* w, uint32_t lanes, const uint64_t* masks,
                uint32_t channels, uint32_t words, Count* left, Count* by_class, uint32_t stride);
  // Adds step (1 or -1) to left[j], and to by_class[j] unless null, for each j with x <= w[j].
  void (*update)(const float* w, uint32_t lanes, float x, int32_t step, Count* left,
                 Count* by_class);
  // Follows one row that comes (step 1) or goes (-1) in up to 64 slots. Slots whose range changes,
  // missing values and categories are left alone; their bits are returned.
  uint64_t (*update_slots)(const SlotColumns& slots, const float* thresholds, Count* left,
                           Count* by_class, const float* x, int32_t step);
  // Lists the admissible lanes that may hold the best score; all of them is a correct answer.
  uint32_t (*screen_binary)(const Count* left, const Count* ones, uint32_t lanes, uint32_t n,
                            uint32_t n_ones, float* scratch, uint32_t* out);
  uint32_t (*screen_multi)(const Count* left, const Count* by_class, uint32_t lanes, uint32_t n,
                           const uint32_t* totals, uint32_t channels, float* scratch,
                           uint32_t* out);
};

struct Kernels {
  bool scores;  // the screens below leave a score per lane in `scratch`, -1 if not admissible
  // x is padded with NaN to a multiple of kChunk.
  Range (*range)(const float* x, uint32_t n);
  // Bit i of out = x[i] <= w.
  void (*mask_le)(const float* x, uint32_t n, float w, uint64_t* out);
  // Bit i of out = bit `bit` of words[i].
  void (*mask_bit)(const uint64_t* words, uint32_t n, uint32_t bit, uint64_t* out);
  // Largest of scores[0..lanes) outside [from, to), at least -1.
  float (*highest_outside)(const float* scores, uint32_t lanes, uint32_t from, uint32_t to);
  // Position of value in at[0..n), or n.
  uint32_t (*find)(const uint32_t* at, uint32_t n, uint32_t value);
  // Regression: left counts and left sums of y.
  void (*count_sums)(const float* x, const int64_t* y, uint32_t n, const float* w, uint32_t lanes,
                     uint32_t* left, int64_t* sums);
  void (*update_sums)(const float* w, uint32_t lanes, float x, int32_t step, int64_t y,
                      uint32_t* left, int64_t* sums);
  CountKernels<uint8_t> bytes;
  CountKernels<uint16_t> words;
  CountKernels<uint32_t> dwords;
};

const Kernels& kernels_scalar();
const Kernels& kernels_avx2();

}  // namespace privml::forest
