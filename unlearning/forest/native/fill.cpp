// Candidate statistics of a node's rows.
#include <algorithm>
#include <cmath>

#include "grower.hpp"

namespace privml::forest {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Count>
void store_counts(Block* block, uint32_t lane, uint32_t left, const uint64_t* bits,
                  const uint64_t* masks, uint32_t channels, uint32_t words, bool add) {
  Count* to = block->left<Count>();
  to[lane] = Count((add ? to[lane] : 0) + left);
  Count* by_class = block->by_class<Count>();
  for (uint32_t c = 0; c < channels; ++c) {
    uint32_t hits = 0;
    for (uint32_t i = 0; i < words; ++i)
      hits += uint32_t(__builtin_popcountll(bits[i] & masks[size_t(c) * words + i]));
    Count& cell = by_class[size_t(c) * block->lanes + lane];
    cell = Count((add ? cell : 0) + hits);
  }
}

}  // namespace

void add_rows(Block* block, uint32_t lane, const uint64_t* bits, const uint64_t* masks,
              uint32_t words, const int64_t* targets, bool add) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < words; ++i) left += uint32_t(__builtin_popcountll(bits[i]));
  if (block->sums) {
    int64_t sum = 0;
    for (uint32_t i = 0; i < words; ++i)
      for (uint64_t rest = bits[i]; rest != 0; rest &= rest - 1)
        sum += targets[i * kChunk + uint32_t(__builtin_ctzll(rest))];
    block->left<uint32_t>()[lane] = (add ? block->left<uint32_t>()[lane] : 0) + left;
    block->left_sums()[lane] = (add ? block->left_sums()[lane] : 0) + sum;
  } else {
    with_counter(block, [&](auto zero) {
      store_counts<decltype(zero)>(block, lane, left, bits, masks, block->channels, words, add);
    });
  }
}

Block* Grower::fill(uint64_t kappa, bool keep) {
  const uint32_t s = params_.thresholds;
  BlockShape shape;
  shape.slots = uint32_t(found_.size());
  shape.words = uint32_t(ws_.skipped.size());
  shape.channels = params_.channels();
  shape.sums = params_.regression();
  shape.width = shape.sums ? 4 : counter_width(n_);
  const auto lanes_of = [&](const Found& f) {
    if (f.kind == kTwoValued) return 1u;
    return round_up(s + (f.kind == kCategorical || f.range.missing > 0), kLane);
  };
  uint32_t first[3] = {0, 0, 0}, total[3] = {0, 0, 0};
  for (const Found& f : found_) total[f.kind] += lanes_of(f);
  first[kCategorical] = total[kNumeric];
  first[kTwoValued] = first[kCategorical] + total[kCategorical];
  shape.numeric_lanes = total[kNumeric];
  shape.pair_lane = first[kTwoValued];
  shape.lanes = round_up(first[kTwoValued] + total[kTwoValued], kLane);
  Block* block;
  if (keep) {
    block = new_block(shape, kappa);
  } else {
    if (ws_.block.size() < shape.bytes()) ws_.block.resize(shape.bytes());
    block = lay_out(ws_.block.data(), shape, kappa);
  }
  std::copy(ws_.skipped.begin(), ws_.skipped.end(), block->skipped());
  if (ws_.left.size() < chunks_) ws_.left.resize(chunks_);
  for (size_t i = 0; i < found_.size(); ++i) {
    const Found& f = found_[i];
    block->set_kind(uint32_t(i), f.kind);
    Slot slot = block->slot(uint32_t(i));
    slot.attribute = f.attribute;
    slot.lane = first[f.kind];
    slot.lanes = uint16_t(lanes_of(f));
    first[f.kind] += slot.lanes;
    slot.mn = float_bits(f.range.mn);
    slot.mx = float_bits(f.range.mx);
    slot.at_mn = f.range.at_mn;
    slot.at_mx = f.range.at_mx;
    slot.missing = f.range.missing;
    if (f.kind == kTwoValued) fill_two_valued(block, slot, f);
    else if (f.kind == kNumeric) fill_numeric(block, slot, column(f.column));
    else fill_categorical(block, slot, column(f.column));
  }
  return block;
}

void Grower::fill_two_valued(Block* block, Slot& slot, const Found& found) {
  slot.used = 1;
  if (found.packed) {
    const uint32_t bit = uint32_t(store_.packed().bit_of[found.attribute]);
    kernels_.mask_bit(&ws_.words[size_t(bit / 64) * stride_], n_, bit % 64, ws_.left.data());
    for (uint32_t i = 0; i < chunks_; ++i) ws_.left[i] = ~ws_.left[i];
    if (n_ % kChunk) ws_.left[chunks_ - 1] &= (uint64_t(1) << (n_ % kChunk)) - 1;
    uint32_t low = 0;
    for (uint32_t i = 0; i < chunks_; ++i) low += uint32_t(__builtin_popcountll(ws_.left[i]));
    slot.at_mn = low;
    slot.at_mx = n_ - low;
  } else {
    kernels_.mask_le(column(found.column), n_, found.range.mn, ws_.left.data());
  }
  add_rows(block, slot.lane, ws_.left.data(), ws_.masks.data(), chunks_, ws_.targets.data(), false);
}

void Grower::fill_numeric(Block* block, Slot& slot, const float* x) {
  const uint32_t s = params_.thresholds, a = slot.attribute;
  const float mn = bits_float(slot.mn), mx = bits_float(slot.mx);
  float* w = block->thresholds() + slot.lane;
  kernels_.thresholds(block->kappa ^ (uint64_t(kDrawThreshold) << 56) ^ (uint64_t(a) << 24), s, mn,
                      mx, std::nextafterf(mx, -kInfinity), w);
  slot.used = uint16_t(s + (slot.missing > 0));
  if (slot.missing > 0) w[s] = kInfinity;
  // No value is <= -infinity: unused lanes stay empty.
  for (uint32_t j = slot.used; j < slot.lanes; ++j) w[j] = -kInfinity;
  if (block->sums) {
    kernels_.count_sums(x, ws_.targets.data(), n_, w, slot.lanes,
                        block->left<uint32_t>() + slot.lane, block->left_sums() + slot.lane);
  } else {
    with_counter(block, [&](auto zero) {
      using Count = decltype(zero);
      counting<Count>(kernels_).count(x, n_, w, slot.lanes, ws_.masks.data(), block->channels,
                                      chunks_, block->left<Count>() + slot.lane,
                                      block->by_class<Count>() + slot.lane, block->lanes);
    });
  }
  if (slot.missing > 0) add_missing(block, slot, x);
}

void Grower::add_missing(Block* block, Slot& slot, const float* x) {
  kernels_.mask_le(x, n_, kInfinity, ws_.left.data());
  for (uint32_t i = 0; i < chunks_; ++i) ws_.left[i] = ~ws_.left[i];
  if (n_ % kChunk) ws_.left[chunks_ - 1] &= (uint64_t(1) << (n_ % kChunk)) - 1;
  for (uint32_t j = 0; j < params_.thresholds; ++j)
    if (!missing_right(block->kappa, slot.attribute, j))
      add_rows(block, slot.lane + j, ws_.left.data(), ws_.masks.data(), chunks_,
               ws_.targets.data(), true);
}

// Counts per distinct code first, then per candidate over the codes that go left.
void Grower::fill_categorical(Block* block, Slot& slot, const float* x) {
  uint32_t size = 16;
  while (size < 2 * std::min(n_ + 1, 1u << 25)) size *= 2;
  ws_.code_table.assign(size, kNone);
  ws_.codes.clear();
  const uint32_t words = chunks_;
  Vec<uint32_t> index(n_);
  for (uint32_t i = 0; i < n_; ++i) {
    const uint32_t code = category_code(x[i]);
    uint32_t at = uint32_t(fmix(code)) & (size - 1);
    while (ws_.code_table[at] != kNone && ws_.codes[ws_.code_table[at]] != code)
      at = (at + 1) & (size - 1);
    if (ws_.code_table[at] == kNone) {
      ws_.code_table[at] = uint32_t(ws_.codes.size());
      ws_.codes.push_back(code);
    }
    index[i] = ws_.code_table[at];
  }
  const uint32_t distinct = uint32_t(ws_.codes.size());
  uint32_t lowest = 0, highest = 0;
  for (uint32_t v = 1; v < distinct; ++v) {
    if (ws_.codes[v] < ws_.codes[lowest]) lowest = v;
    if (ws_.codes[v] > ws_.codes[highest]) highest = v;
  }
  ws_.code_counts.assign(distinct, 0);
  for (uint32_t i = 0; i < n_; ++i) ++ws_.code_counts[index[i]];
  slot.mn = ws_.codes[lowest];
  slot.mx = ws_.codes[highest];
  slot.at_mn = ws_.code_counts[lowest];
  slot.at_mx = ws_.code_counts[highest];
  slot.missing = 0;
  slot.used = uint16_t(params_.thresholds);
  slot.extra = 0;
  Vec<uint8_t> right(distinct);
  bool any = false;
  const auto attempt = [&](uint32_t j, uint32_t lane) {
    const uint64_t base = draw_base(block->kappa, kDrawCategory, slot.attribute, j);
    uint32_t left = 0;
    for (uint32_t v = 0; v < distinct; ++v) {
      right[v] = category_right(base, ws_.codes[v]);
      if (!right[v]) left += ws_.code_counts[v];
    }
    std::fill(ws_.left.begin(), ws_.left.begin() + words, 0);
    for (uint32_t i = 0; i < n_; ++i)
      ws_.left[i / kChunk] |= uint64_t(!right[index[i]]) << (i % kChunk);
    add_rows(block, lane, ws_.left.data(), ws_.masks.data(), words, ws_.targets.data(), false);
    return left > 0 && left < n_;
  };
  for (uint32_t j = 0; j < params_.thresholds; ++j) any |= attempt(j, slot.lane + j);
  if (any) {  // the lane of the late candidate, if it had one before, counts no more
    std::fill(ws_.left.begin(), ws_.left.begin() + words, 0);
    add_rows(block, slot.lane + params_.thresholds, ws_.left.data(), ws_.masks.data(), words,
             ws_.targets.data(), false);
  }
  for (uint32_t j = params_.thresholds; !any && j < kCategoryCap; ++j) {
    any = attempt(j, slot.lane + params_.thresholds);
    if (!any) continue;
    slot.extra = uint16_t(j);
    slot.used = uint16_t(params_.thresholds + 1);
  }
}

}  // namespace privml::forest
