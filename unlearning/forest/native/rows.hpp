// The living rows: features, labels, ids, and the map from id to row slot.
#pragma once

#include "types.hpp"

namespace privml::forest {

// Columns of which all rows hold one of two values, one bit per row: whether the row holds the
// larger value. A node finds its constant one-hot columns by OR and AND over a few words per row.
struct PackedColumns {
  uint32_t words = 0;         // per row
  Vec<int32_t> bit_of;        // per column, -1 if not packed
  Vec<uint32_t> column_of;    // per bit, kNone once the column has seen a third value
  Vec<float> low, high;       // per bit
  Vec<uint64_t> bits;         // row-major
  Vec<uint64_t> active;       // words: bits that still are two-valued
};

class RowStore {
 public:
  void reset(const Params& params, uint64_t n);
  void clear();

  // Appends or reuses a slot. The caller has checked the values and that the id is new.
  uint32_t add(const float* x, int64_t y, const IdRecord& id);
  // Forgets the row in this slot and overwrites everything kept of it.
  void erase(uint32_t slot);
  // Chooses the packed columns from the rows held now.
  void pack();
  // Renumbers the slots 0..n-1 in canonical order in fresh memory; returns old slot -> new slot.
  Vec<uint32_t> compact();

  uint32_t find(const IdRecord& id) const;
  IdRecord id(uint32_t slot) const {
    return {kind_[slot], lo_[slot], hi_.empty() ? 0 : hi_[slot]};
  }
  bool living(uint32_t slot) const { return kind_[slot] != kDead; }
  uint32_t size() const { return living_; }
  uint32_t slots() const { return uint32_t(kind_.size()); }

  const float* x(uint32_t slot) const { return x_.data() + size_t(slot) * p_; }
  const float* features() const { return x_.data(); }
  const int32_t* classes() const { return class_.data(); }
  const int64_t* targets() const { return target_.data(); }
  int64_t y(uint32_t slot) const { return target_.empty() ? class_[slot] : target_[slot]; }
  const PackedColumns& packed() const { return packed_; }

  // Living slots sorted by (kind, hi, lo).
  Vec<uint32_t> canonical_order() const;
  size_t bytes() const;

 private:
  static constexpr uint8_t kDead = 0xFF;

  uint64_t bucket(const IdRecord& id) const;
  void insert_into_map(uint32_t slot);
  void remove_from_map(uint32_t slot);
  void rebuild_map(size_t capacity);
  void set_bits(uint32_t slot);

  uint32_t p_ = 0, living_ = 0;
  bool regression_ = false;
  uint64_t salt_ = 0;
  std::vector<uint8_t> categorical_;
  Vec<float> x_;
  Vec<int32_t> class_;
  Vec<int64_t> target_;
  Vec<uint8_t> kind_;
  Vec<uint64_t> lo_, hi_;  // hi_ stays empty while all ids are integers
  Vec<uint32_t> map_;      // open addressing, linear probing, no tombstones
  Vec<uint32_t> free_;
  PackedColumns packed_;
};

}  // namespace privml::forest
