#include "rows.hpp"

#include <algorithm>

namespace privml::forest {

void trees_of(const Params& params, const IdRecord& id, Vec<uint32_t>& order, uint32_t* out) {
  const uint32_t trees = params.trees;
  if (order.size() != trees) {
    order.resize(trees);
    for (uint32_t t = 0; t < trees; ++t) order[t] = t;
  }
  SipHash prefix(params.occurrence, kDomainMember);
  prefix.add(id.kind).add(id.lo).add(id.hi);
  for (uint32_t i = 0; i < params.per_row; ++i) {
    SipHash hash = prefix;
    const uint32_t other = i + uint32_t(bounded(hash.add(i).finish(), trees - i));
    std::swap(order[i], order[other]);
    out[i] = other;  // remembered to undo the swaps
  }
  for (uint32_t i = params.per_row; i-- > 0;) {
    const uint32_t other = out[i];
    out[i] = order[i];
    std::swap(order[i], order[other]);
  }
}

void RowStore::reset(const Params& params, uint64_t n) {
  clear();
  p_ = params.features;
  regression_ = params.regression();
  categorical_ = params.categorical;
  salt_ = SipHash(params.tree, 0xFE).add(0).finish();
  x_.reserve(n * p_);
  kind_.reserve(n);
  lo_.reserve(n);
  if (regression_) target_.reserve(n);
  else class_.reserve(n);
  size_t capacity = 16;
  while (capacity * 2 < n * 3) capacity *= 2;
  map_.assign(capacity, kNone);
}

void RowStore::clear() { *this = RowStore(); }

uint64_t RowStore::bucket(const IdRecord& id) const {
  return fmix(fmix(id.lo ^ salt_) + id.hi + id.kind) & (map_.size() - 1);
}

uint32_t RowStore::find(const IdRecord& id) const {
  if (map_.empty()) return kNone;
  const size_t mask = map_.size() - 1;
  for (size_t at = bucket(id);; at = (at + 1) & mask) {
    const uint32_t slot = map_[at];
    if (slot == kNone) return kNone;
    if (this->id(slot) == id) return slot;
  }
}

void RowStore::insert_into_map(uint32_t slot) {
  const size_t mask = map_.size() - 1;
  size_t at = bucket(id(slot));
  while (map_[at] != kNone) at = (at + 1) & mask;
  map_[at] = slot;
}

// Backward shift: entries behind the hole move up, so that no marker of the deleted id stays.
void RowStore::remove_from_map(uint32_t slot) {
  const size_t mask = map_.size() - 1;
  size_t hole = bucket(id(slot));
  while (map_[hole] != slot) hole = (hole + 1) & mask;
  for (size_t at = (hole + 1) & mask; map_[at] != kNone; at = (at + 1) & mask) {
    const size_t home = bucket(id(map_[at]));
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      map_[hole] = map_[at];
      hole = at;
    }
  }
  map_[hole] = kNone;
}

void RowStore::rebuild_map(size_t capacity) {
  map_.assign(capacity, kNone);
  for (uint32_t slot = 0; slot < slots(); ++slot)
    if (living(slot)) insert_into_map(slot);
}

uint32_t RowStore::add(const float* x, int64_t y, const IdRecord& id) {
  if ((size_t(living_) + 1) * 4 > map_.size() * 3) rebuild_map(map_.size() * 2);
  if (id.hi != 0 && hi_.empty()) {
    hi_.reserve(kind_.capacity());
    hi_.assign(kind_.size(), 0);
  }
  const bool wide = !hi_.empty() || id.hi != 0;
  uint32_t slot;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else {
    slot = slots();
    grow_for(x_, p_);
    grow_for(kind_, 1);
    grow_for(lo_, 1);
    if (wide) grow_for(hi_, 1);
    if (regression_) grow_for(target_, 1);
    else grow_for(class_, 1);
    if (packed_.words) grow_for(packed_.bits, packed_.words);
    // No allocation below: an exception above leaves the store as it was.
    x_.resize(x_.size() + p_);
    kind_.push_back(kDead);
    lo_.push_back(0);
    if (wide) hi_.push_back(0);
    if (regression_) target_.push_back(0);
    else class_.push_back(0);
    if (packed_.words) packed_.bits.resize(packed_.bits.size() + packed_.words);
  }
  float* to = x_.data() + size_t(slot) * p_;
  for (uint32_t a = 0; a < p_; ++a) to[a] = canonical_value(x[a]);
  if (regression_) target_[slot] = y;
  else class_[slot] = int32_t(y);
  kind_[slot] = uint8_t(id.kind);
  lo_[slot] = id.lo;
  if (wide) hi_[slot] = id.hi;
  ++living_;
  insert_into_map(slot);
  if (packed_.words) set_bits(slot);
  return slot;
}

void RowStore::erase(uint32_t slot) {
  free_.push_back(slot);
  remove_from_map(slot);
  scrub(x_.data() + size_t(slot) * p_, p_ * sizeof(float));
  if (regression_) target_[slot] = 0;
  else class_[slot] = 0;
  if (packed_.words) scrub(&packed_.bits[size_t(slot) * packed_.words], packed_.words * 8);
  kind_[slot] = kDead;
  lo_[slot] = 0;
  if (!hi_.empty()) hi_[slot] = 0;
  --living_;
}

void RowStore::pack() {
  packed_ = PackedColumns();
  packed_.bit_of.assign(p_, -1);
  for (uint32_t a = 0; a < p_ && living_ > 0; ++a) {
    if (categorical_[a]) continue;
    float low = 0, high = 0;
    uint32_t seen = 0;
    for (uint32_t slot = 0; slot < slots() && seen <= 2; ++slot) {
      if (!living(slot)) continue;
      const float v = x(slot)[a];
      if (v != v) seen = 3;
      else if (seen == 0) low = high = v, seen = 1;
      else if (seen == 1 && v != low) high = v, seen = 2;
      else if (seen == 2 && v != low && v != high) seen = 3;
    }
    if (seen > 2) continue;
    packed_.bit_of[a] = int32_t(packed_.column_of.size());
    packed_.column_of.push_back(a);
    packed_.low.push_back(std::min(low, high));
    packed_.high.push_back(std::max(low, high));
  }
  const uint32_t bits = uint32_t(packed_.column_of.size());
  packed_.words = (bits + 63) / 64;
  packed_.active.assign(packed_.words, 0);
  for (uint32_t b = 0; b < bits; ++b) packed_.active[b / 64] |= uint64_t(1) << (b % 64);
  packed_.bits.assign(size_t(slots()) * packed_.words, 0);
  for (uint32_t slot = 0; slot < slots() && packed_.words; ++slot)
    if (living(slot)) set_bits(slot);
}

void RowStore::set_bits(uint32_t slot) {
  uint64_t* to = &packed_.bits[size_t(slot) * packed_.words];
  for (uint32_t b = 0; b < packed_.column_of.size(); ++b) {
    const uint32_t a = packed_.column_of[b];
    if (a == kNone) continue;
    const float v = x(slot)[a];
    if (v == packed_.high[b]) {
      to[b / 64] |= uint64_t(1) << (b % 64);
    } else if (v != packed_.low[b]) {  // a third value: from now on an ordinary column
      packed_.active[b / 64] &= ~(uint64_t(1) << (b % 64));
      packed_.bit_of[a] = -1;
      packed_.column_of[b] = kNone;
    }
  }
}

Vec<uint32_t> RowStore::canonical_order() const {
  Vec<uint32_t> order;
  order.reserve(living_);
  for (uint32_t slot = 0; slot < slots(); ++slot)
    if (living(slot)) order.push_back(slot);
  const auto hi = [this](uint32_t s) { return hi_.empty() ? 0 : hi_[s]; };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (kind_[a] != kind_[b]) return kind_[a] < kind_[b];
    if (hi(a) != hi(b)) return hi(a) < hi(b);
    return lo_[a] < lo_[b];
  });
  return order;
}

Vec<uint32_t> RowStore::compact() {
  const Vec<uint32_t> order = canonical_order();
  Vec<uint32_t> moved(slots(), kNone);
  RowStore fresh;
  fresh.p_ = p_;
  fresh.regression_ = regression_;
  fresh.salt_ = salt_;
  fresh.categorical_ = categorical_;
  fresh.x_.reserve(order.size() * p_);
  fresh.kind_.reserve(order.size());
  fresh.lo_.reserve(order.size());
  if (regression_) fresh.target_.reserve(order.size());
  else fresh.class_.reserve(order.size());
  size_t capacity = 16;
  while (capacity * 2 < order.size() * 3) capacity *= 2;
  fresh.map_.assign(capacity, kNone);
  for (uint32_t slot : order) moved[slot] = fresh.add(x(slot), y(slot), id(slot));
  fresh.pack();
  std::swap(*this, fresh);
  return moved;
}

size_t RowStore::bytes() const {
  return bytes_of(x_) + bytes_of(class_) + bytes_of(target_) + bytes_of(kind_) + bytes_of(lo_) +
         bytes_of(hi_) + bytes_of(map_) + bytes_of(free_) + bytes_of(packed_.bits);
}

}  // namespace privml::forest
