// Which attributes a node looks at: the first P usable ones of the node's permutation.
#include <algorithm>

#include "grower.hpp"

namespace privml::forest {
namespace {

bool test_bit(const Vec<uint64_t>& bits, uint32_t i) { return bits[i / 64] >> (i % 64) & 1; }
void set_bit(Vec<uint64_t>& bits, uint32_t i) { bits[i / 64] |= uint64_t(1) << (i % 64); }

}  // namespace

void Grower::load_rows(const Tree& tree, uint32_t node) {
  const Cold& c = tree.cold[node];
  n_ = c.n;
  stride_ = round_up(std::max(n_, 1u), kChunk);
  chunks_ = stride_ / kChunk;
  if (ws_.rows.size() < c.cap + 16) ws_.rows.resize(c.cap + c.cap / 8 + 64);
  const uint32_t* from = tree.rows.data() + c.lo;
  if (c.cap == n_) {
    std::memcpy(ws_.rows.data(), from, n_ * sizeof(uint32_t));
    return;
  }
  uint32_t kept = 0;
  for (uint32_t i = 0; i < c.cap; ++i) {
    ws_.rows[kept] = from[i];
    kept += from[i] != kNone;
  }
}

void Grower::load_labels() {
  const uint32_t* rows = ws_.rows.data();
  if (params_.regression()) {
    if (ws_.targets.size() < stride_) ws_.targets.resize(stride_);
    for (uint32_t i = 0; i < n_; ++i) ws_.targets[i] = store_.targets()[rows[i]];
    return;
  }
  const uint32_t channels = params_.channels();
  const int32_t* classes = store_.classes();
  if (channels == 1) {
    if (ws_.masks.size() < chunks_) ws_.masks.resize(chunks_);
    for (uint32_t from = 0; from < n_; from += kChunk) {
      const uint32_t to = std::min(n_, from + kChunk);
      uint64_t ones = 0;  // the first row ends up in the lowest bit
      for (uint32_t i = from; i < to; ++i)
        ones = ones >> 1 | uint64_t(classes[rows[i]] & 1) << 63;
      ws_.masks[from / kChunk] = ones >> (from + kChunk - to);
    }
    return;
  }
  ws_.masks.assign(size_t(chunks_) * channels, 0);
  for (uint32_t i = 0; i < n_; ++i) {
    const uint32_t c = uint32_t(classes[rows[i]]);
    if (c > 0) ws_.masks[size_t(c - 1) * chunks_ + i / kChunk] |= uint64_t(1) << (i % kChunk);
  }
}

void Grower::load_words() {
  const PackedColumns& packed = store_.packed();
  const uint32_t words = packed.words;
  if (words == 0) return;
  if (ws_.words.size() < size_t(words) * stride_) ws_.words.resize(size_t(words) * stride_);
  ws_.any.assign(words, 0);
  ws_.all.assign(words, ~uint64_t(0));
  for (uint32_t w = 0; w < words; ++w) {
    uint64_t any = 0, all = ~uint64_t(0);
    uint64_t* to = &ws_.words[size_t(w) * stride_];
    for (uint32_t i = 0; i < n_; ++i) {
      const uint64_t bits = packed.bits[size_t(ws_.rows[i]) * words + w];
      to[i] = bits;
      any |= bits;
      all &= bits;
    }
    ws_.any[w] = any;
    ws_.all[w] = all;
  }
}

// Tile by tile: while the values of one tile are copied column by column, from lines that are in
// the cache, the lines of the next one are on their way.
void Grower::gather(const uint32_t* attributes, uint32_t count, float* const* to) {
  const float* x = store_.features();
  const size_t p = params_.features;
  const uint32_t* rows = ws_.rows.data();
  uint32_t lines[kFetch];
  const uint32_t fetched = lines_of(attributes, count, lines);
  const auto fetch = [&](uint32_t from) {
    for (uint32_t i = from; i < std::min(n_, from + kTile); ++i)
      for (uint32_t q = 0; q < fetched; ++q) __builtin_prefetch(x + rows[i] * p + lines[q]);
  };
  fetch(0);
  for (uint32_t from = 0; from < n_; from += kTile) {
    fetch(from + kTile);
    const uint32_t until = std::min(n_, from + kTile);
    for (uint32_t q = 0; q < count; ++q) {
      const float* column = x + attributes[q];
      float* out = to[q];
      for (uint32_t i = from; i < until; ++i) out[i] = column[rows[i] * p];
    }
  }
  for (uint32_t q = 0; q < count; ++q)
    for (uint32_t i = n_; i < stride_; ++i) to[q][i] = kNaN;
}

// Offsets in a row that together touch about every line the attributes lie in.
uint32_t Grower::lines_of(const uint32_t* attributes, uint32_t count, uint32_t* lines) const {
  constexpr uint32_t kLine = 16;
  uint32_t found = 0;
  for (uint32_t q = 0; q < count && found < kFetch; ++q) {
    bool near = false;
    for (uint32_t i = 0; i < found; ++i) near |= attributes[q] / kLine == lines[i] / kLine;
    if (!near) lines[found++] = attributes[q];
  }
  return found;
}

// Draws come eight at a time: what is done with one is too unpredictable to wait for the next.
bool Grower::next_attribute(uint64_t kappa, uint32_t& attribute) {
  const uint32_t p = params_.features;
  if (step_ == p) return false;
  if (step_ % kDraws == 0) {
    for (uint32_t i = 0; i < kDraws; ++i) draws_[i] = draw(kappa, kDrawOrder, step_ + i, 0);
    if (ws_.swaps.size() < step_ + kDraws) ws_.swaps.resize(step_ + 4 * kDraws);
  }
  const uint32_t other = step_ + uint32_t(bounded(draws_[step_ % kDraws], p - step_));
  std::swap(ws_.order[step_], ws_.order[other]);
  ws_.swaps[step_] = other;
  attribute = ws_.order[step_++];
  return true;
}

// Back to the identity, so that the next node need not write p numbers.
void Grower::restore_order() {
  while (step_ > 0) {
    --step_;
    std::swap(ws_.order[step_], ws_.order[ws_.swaps[step_]]);
  }
}

bool Grower::examine_packed(Found& slot) {
  const PackedColumns& packed = store_.packed();
  const uint32_t bit = uint32_t(packed.bit_of[slot.attribute]);
  const bool any = ws_.any[bit / 64] >> (bit % 64) & 1, all = ws_.all[bit / 64] >> (bit % 64) & 1;
  if (!any || all) return false;
  slot.kind = kTwoValued;
  slot.range.mn = packed.low[bit];
  slot.range.mx = packed.high[bit];
  return true;
}

// Range of gathered values; for categories missing is a code like the others, the largest one.
bool Grower::examine(Found& slot) {
  Range r = kernels_.range(column(slot.column), n_);
  slot.examined = true;
  if (!params_.categorical[slot.attribute]) {
    slot.range = r;
    slot.kind = r.missing == 0 && r.at_mn + r.at_mx == n_ ? kTwoValued : kNumeric;
    return r.missing < n_ && (r.mn < r.mx || r.missing > 0);
  }
  slot.kind = kCategorical;
  slot.range = r;
  return r.missing < n_ && (r.mn != r.mx || r.missing > 0);
}

void Grower::choose_slots(uint64_t kappa) {
  const uint32_t p = params_.features, wanted = std::min(params_.max_features, p);
  const uint32_t words = (p + 63) / 64;
  const bool any_known = !ws_.known.empty();
  if (ws_.order.size() != p) {
    ws_.order.resize(p);
    for (uint32_t a = 0; a < p; ++a) ws_.order[a] = a;
  }
  if (ws_.columns.size() < size_t(wanted) * stride_) ws_.columns.resize(size_t(wanted) * stride_);
  ws_.skipped.assign(words, 0);
  found_.clear();
  std::vector<uint32_t>& attributes = wanted_;
  std::vector<float*>& to = columns_;
  step_ = 0;
  bool more = true;
  while (more && found_.size() < wanted) {
    const size_t before = found_.size();
    attributes.clear();
    to.clear();
    uint32_t columns = 0;
    for (const Found& f : found_)
      if (!f.packed) columns = std::max(columns, f.column + 1);
    while (found_.size() < wanted) {
      Found slot{};
      more = next_attribute(kappa, slot.attribute);
      if (!more) break;
      const uint32_t a = slot.attribute;
      slot.packed = store_.packed().bit_of[a] >= 0;
      if ((any_known && test_bit(ws_.known, a)) || (slot.packed && !examine_packed(slot))) {
        set_bit(ws_.skipped, a);
        continue;
      }
      if (!slot.packed) {
        slot.column = columns++;
        attributes.push_back(a);
      }
      found_.push_back(slot);
    }
    // Columns freed by constant attributes are reused only by later rounds' higher numbers, so
    // there may be more columns than slots.
    if (ws_.columns.size() < size_t(columns) * stride_)
      ws_.columns.resize(size_t(columns) * stride_);
    for (size_t i = before; i < found_.size(); ++i)
      if (!found_[i].packed) to.push_back(column(found_[i].column));
    if (!attributes.empty()) gather(attributes.data(), uint32_t(attributes.size()), to.data());
    size_t kept = before;
    for (size_t i = before; i < found_.size(); ++i) {
      if (found_[i].packed || examine(found_[i])) found_[kept++] = found_[i];
      else set_bit(ws_.skipped, found_[i].attribute);
    }
    found_.resize(kept);
  }
  restore_order();
}

}  // namespace privml::forest
