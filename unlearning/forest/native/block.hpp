// Candidate statistics of one node in one contiguous piece of memory:
//   Block | Slot[slots] | skipped bitmap | thresholds | left counts | class counts or sums
// Candidates of all slots lie side by side in "lanes": first those of numeric slots with their
// thresholds, then those of categorical slots, then one lane per two-valued slot. Lanes nobody uses
// hold a left count of zero, which no score accepts.
#pragma once

#include "kernels.hpp"
#include "types.hpp"

namespace privml::forest {

struct BlockShape {
  uint32_t slots = 0;
  uint32_t numeric_lanes = 0;
  uint32_t lanes = 0;     // all, padded to kLane
  uint32_t channels = 0;  // class counters per lane
  uint32_t words = 0;     // of the bitmap of skipped attributes
  bool wide = false;      // 32-bit counters
  bool sums = false;      // int64 sums instead of class counters

  size_t bytes() const;
};

struct Block {
  uint64_t kappa;
  uint32_t bytes;
  uint32_t slots;
  uint32_t numeric_lanes, lanes, channels, words;
  uint32_t slots_at, skipped_at, thresholds_at, counts_at, classes_at;
  uint8_t wide, sums;
  uint8_t twins;   // the slack leaves out candidates that cut exactly like the chosen one
  uint8_t unused;
  uint32_t slack;  // rows that may come or go before the chosen candidate can be beaten

  Slot* slot() { return at<Slot>(slots_at); }
  // Attributes before the last slot in the order of the node that were constant.
  uint64_t* skipped() { return at<uint64_t>(skipped_at); }
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

  uint32_t left_of(uint32_t lane) {
    return wide ? left<uint32_t>()[lane] : left<uint16_t>()[lane];
  }
  uint32_t class_of(uint32_t channel, uint32_t lane) {
    const size_t i = size_t(channel) * lanes + lane;
    return wide ? by_class<uint32_t>()[i] : by_class<uint16_t>()[i];
  }

 private:
  template <class T>
  T* at(uint32_t offset) {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(this) + offset);
  }
};

// Lays an empty block of this shape out in zeroed memory at `at`, which is 64-byte aligned.
Block* lay_out(void* at, const BlockShape& shape, uint64_t kappa);

Block* new_block(const BlockShape& shape, uint64_t kappa);
Block* copy_block(const Block* from);
void delete_block(Block* block);

}  // namespace privml::forest
