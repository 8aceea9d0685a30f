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

// Columns of a block, one entry per slot, each padded to kSlots. mn and mx: smallest and largest
// present value as float bits (categories: codes), at_mn and at_mx: how many rows hold them.
// inside: all bits set if a value between them changes neither; simple: all bits set unless
// categorical or padding. term: see lead.cpp.
enum Column : uint32_t {
  kAttribute, kMn, kMx, kAtMn, kAtMx, kInside, kSimple, kTerm, kColumns
};

// Up to 64 slots.
struct SlotColumns {
  uint32_t* first;  // column kAttribute at the first of them
  uint32_t padded;  // from one column to the next
  uint32_t count;
  const SlotInfo* info;
  uint64_t pairs;  // which are two-valued

  uint32_t* column(Column c) const { return first + c * padded; }
};
constexpr uint32_t kSlots = 4;

// The chosen candidate among its rivals. Terms and times are explained in lead.cpp.
struct Lead {
  const SlotInfo* info;
  uint32_t *terms, *pair_term;
  uint32_t slots, lanes, pair_lane;
  uint32_t n, n_ones;
  uint32_t best_slot, best_lane;
  uint32_t now;
  bool nested;  // candidates of the chosen slot with equal left counts cut alike
};
// With so few candidates it is cheaper to look at all of them than to keep terms.
constexpr uint32_t kFewLanes = 64;

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
  // True if the chosen candidate of two classes is certain to be the best, see lead.cpp. Renews
  // terms that have run out.
  bool (*stands)(const Lead& lead, const Count* left, const Count* ones);
  uint32_t (*screen_multi)(const Count* left, const Count* by_class, uint32_t lanes, uint32_t n,
                           const uint32_t* totals, uint32_t channels, float* scratch,
                           uint32_t* out);
};

struct Kernels {
  bool screens;  // screened scores can be relied on up to their rounding
  // x is padded with NaN to a multiple of kChunk.
  Range (*range)(const float* x, uint32_t n);
  // Bit i of out = x[i] <= w.
  void (*mask_le)(const float* x, uint32_t n, float w, uint64_t* out);
  // Bit i of out = bit `bit` of words[i].
  void (*mask_bit)(const uint64_t* words, uint32_t n, uint32_t bit, uint64_t* out);
  // The first thresholds of a numeric attribute; key holds all of a draw but the candidate index,
  // below_mx is the float just below mx.
  void (*thresholds)(uint64_t key, uint32_t count, float mn, float mx, float below_mx, float* w);
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
const Kernels& kernels_avx512();

}  // namespace privml::forest
