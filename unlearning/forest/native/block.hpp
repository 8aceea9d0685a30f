// Candidate statistics of one node in one contiguous piece of memory:
//   Block | slots by columns | SlotInfo[slots] | two-valued bitmap | skipped bitmap
//         | thresholds | left counts | class counts or sums
// Candidates of all slots lie side by side in "lanes": first those of numeric slots with their
// thresholds, then those of categorical slots, then one lane per two-valued slot. Lanes nobody uses
// hold a left count of zero, which no score accepts.
#pragma once

#include "kernels.hpp"
#include "types.hpp"

namespace privml::forest {

// One attribute a node looks at, gathered from the columns of its block.
struct Slot {
  uint32_t &attribute, &mn, &mx, &at_mn, &at_mx, &missing, &lane;
  uint16_t &lanes, &used, &extra;
  const SlotKind& kind;
};

struct BlockShape {
  uint32_t slots = 0;
  uint32_t numeric_lanes = 0;
  uint32_t lanes = 0;     // all, padded to kLane
  uint32_t pair_lane = 0; // first lane of the two-valued slots
  uint32_t channels = 0;  // class counters per lane
  uint32_t words = 0;     // of the bitmap of skipped attributes
  uint32_t width = 2;     // bytes of a counter: 1, 2 or 4
  bool sums = false;      // int64 sums instead of class counters; counters of 4 bytes

  size_t bytes() const;
};

// Smallest counter that n rows fit.
inline uint32_t counter_width(uint32_t n) { return n <= 0xFF ? 1 : n <= 0xFFFF ? 2 : 4; }

struct Block {
  uint64_t kappa;
  uint32_t bytes;
  uint32_t slots;
  uint32_t numeric_lanes, lanes;
  uint16_t channels, words;
  uint8_t width, sums;
  uint16_t unused;
  uint32_t thresholds_at, counts_at, classes_at;
  // Terms, see lead.cpp: up to when no candidate of a slot can overtake the chosen one. Time is the
  // number of rows that came or went. All two-valued slots share one term.
  uint32_t now, pair_term;
  uint32_t best_slot, best_lane;  // the chosen candidate, kNone if not known
  uint32_t pair_lane;             // first lane of the two-valued slots

  uint32_t padded() const { return round_up(slots, kSlots); }
  uint32_t* column(Column c) { return at<uint32_t>(sizeof(Block)) + c * padded(); }
  uint32_t* terms() { return column(kTerm); }
  SlotInfo* info() { return at<SlotInfo>(info_at(slots)); }
  // Which slots are two-valued, one bit each.
  uint64_t* pairs() { return at<uint64_t>(pairs_at(slots)); }
  // Attributes before the last slot in the order of the node that were constant.
  uint64_t* skipped() { return pairs() + (slots + 63) / 64; }
  float* thresholds() { return at<float>(thresholds_at); }
  template <class Count>
  Count* left() {
    return at<Count>(counts_at);
  }
  template <class Count>
  Count* by_class() {
    return at<Count>(classes_at);
  }
  int64_t* left_sums() { return at<int64_t>(classes_at); }

  static size_t info_at(uint32_t slots) {
    return sizeof(Block) + size_t(kColumns) * round_up(slots, kSlots) * 4;
  }
  static size_t pairs_at(uint32_t slots) {
    return (info_at(slots) + slots * sizeof(SlotInfo) + 7) / 8 * 8;
  }

  Slot slot(uint32_t q) {
    SlotInfo& more = info()[q];
    return {column(kAttribute)[q], column(kMn)[q], column(kMx)[q], column(kAtMn)[q],
            column(kAtMx)[q],      more.missing,   more.lane,      more.lanes,
            more.used,             more.extra,     more.kind};
  }
  void set_kind(uint32_t q, SlotKind kind);
  // Columns of the slots from a multiple of 64 on.
  SlotColumns columns(uint32_t first) {
    const uint32_t count = slots - first < 64 ? slots - first : 64;
    return {column(kAttribute) + first, padded(), count, info() + first, pairs()[first / 64]};
  }

  uint32_t left_of(uint32_t lane) {
    return width == 1   ? left<uint8_t>()[lane]
           : width == 2 ? left<uint16_t>()[lane]
                        : left<uint32_t>()[lane];
  }
  uint32_t class_of(uint32_t channel, uint32_t lane) {
    const size_t i = size_t(channel) * lanes + lane;
    return width == 1   ? by_class<uint8_t>()[i]
           : width == 2 ? by_class<uint16_t>()[i]
                        : by_class<uint32_t>()[i];
  }

 private:
  template <class T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(this) + offset);
  }
};
static_assert(sizeof(Block) == 64);  // one cache line, then what every change reads

// Calls f with a value of the type of the block's counters.
template <class F>
auto with_counter(const Block* block, const F& f) {
  if (block->width == 1) return f(uint8_t());
  if (block->width == 2) return f(uint16_t());
  return f(uint32_t());
}

template <class Count>
const CountKernels<Count>& counting(const Kernels& kernels) {
  if constexpr (sizeof(Count) == 1) return kernels.bytes;
  else if constexpr (sizeof(Count) == 2) return kernels.words;
  else return kernels.dwords;
}

// Lays an empty block of this shape out in zeroed memory at `at`, which is 64-byte aligned.
Block* lay_out(void* at, const BlockShape& shape, uint64_t kappa);

Block* new_block(const BlockShape& shape, uint64_t kappa);
void delete_block(Block* block);

}  // namespace privml::forest
