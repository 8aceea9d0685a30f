// Exact statistics of one block under additions and deletions.
#include <algorithm>

#include "modifier.hpp"

namespace privml::forest {

// Adds step to one lane.
void Modifier::add_lane(Block* block, uint32_t lane, int64_t y) {
  if (block->sums) {
    block->left<uint32_t>()[lane] += uint32_t(step_);
    block->left_sums()[lane] += step_ * y;
    return;
  }
  with_counter(block, [&](auto zero) {
    using Count = decltype(zero);
    Count& left = block->left<Count>()[lane];
    left = Count(left + step_);
    if (y == 0) return;
    Count& cell = block->by_class<Count>()[size_t(y - 1) * block->lanes + lane];
    cell = Count(cell + step_);
  });
}

void Modifier::update_numeric(Block* block, Slot& slot, float v, int64_t y, bool& dirty) {
  if (v != v) {
    if (step_ > 0 && slot.missing == 0) {
      dirty = true;  // the candidate "missing right" appears
      return;
    }
    slot.missing += uint32_t(step_);
    for (uint32_t j = 0; j < params_.thresholds; ++j)
      if (!missing_right(block->kappa, slot.attribute, j)) add_lane(block, slot.lane + j, y);
    return;
  }
  const float mn = bits_float(slot.mn), mx = bits_float(slot.mx);
  if (v < mn || v > mx) {
    dirty = true;
    return;
  }
  if (v == mn) slot.at_mn += uint32_t(step_);
  if (v == mx) slot.at_mx += uint32_t(step_);
  if (slot.at_mn == 0 || slot.at_mx == 0) {
    dirty = true;
    return;
  }
  const float* w = block->thresholds() + slot.lane;
  const uint32_t lanes = slot.lanes;
  if (block->sums) {
    kernels_.update_sums(w, lanes, v, step_, y, block->left<uint32_t>() + slot.lane,
                         block->left_sums() + slot.lane);
    return;
  }
  with_counter(block, [&](auto zero) {
    using Count = decltype(zero);
    const size_t cell = y > 0 ? size_t(y - 1) * block->lanes + slot.lane : 0;
    counting<Count>(kernels_).update(w, lanes, v, step_, block->left<Count>() + slot.lane,
                                     y > 0 ? block->by_class<Count>() + cell : nullptr);
  });
}

// False if the slot is constant now, or holds a third value.
bool Modifier::update_two_valued(Block* block, Slot& slot, float v, int64_t y) {
  if (v == bits_float(slot.mn)) {
    slot.at_mn += uint32_t(step_);
    add_lane(block, slot.lane, y);
    return slot.at_mn > 0;
  }
  if (v != bits_float(slot.mx)) return false;
  slot.at_mx += uint32_t(step_);
  return slot.at_mx > 0;
}

void Modifier::update_categorical(Block* block, Slot& slot, float v, int64_t y, bool& dirty) {
  const uint32_t code = category_code(v);
  if (code < slot.mn || code > slot.mx) {
    dirty = true;
    return;
  }
  if (code == slot.mn) slot.at_mn += uint32_t(step_);
  if (code == slot.mx) slot.at_mx += uint32_t(step_);
  if (slot.at_mn == 0 || slot.at_mx == 0 || (step_ > 0 && slot.extra != 0)) {
    dirty = true;
    return;
  }
  for (uint32_t i = 0; i < slot.used; ++i) {
    const uint32_t j = i < params_.thresholds ? i : slot.extra;
    if (!category_right(draw_base(block->kappa, kDrawCategory, slot.attribute, j), code))
      add_lane(block, slot.lane + i, y);
  }
}

// Whether the candidate beyond s has to be looked for.
bool Modifier::lacks_candidate(Block* block, const Slot& slot, uint32_t n) const {
  for (uint32_t i = 0; i < slot.used; ++i) {
    const uint32_t left = block->left_of(slot.lane + i);
    if (left > 0 && left < n) return false;
  }
  return true;
}

// Follows one row in one slot; false if the slot is not what a fresh build would have.
bool Modifier::update_slot(Block* block, Slot& slot, const float* x, int64_t y, bool& dirty) {
  const float v = x[slot.attribute];
  if (slot.kind == kTwoValued) return update_two_valued(block, slot, v, y);
  if (slot.kind == kNumeric) update_numeric(block, slot, v, y, dirty);
  else update_categorical(block, slot, v, y, dirty);
  return true;
}

// Follows one row in up to 64 slots the simple way; returns those that need more.
uint64_t Modifier::update_simple(Block* block, const SlotColumns& slots, const float* x,
                                 int64_t y) {
  if (block->sums) return ~uint64_t(0) >> (64 - slots.count);
  return with_counter(block, [&](auto zero) {
    using Count = decltype(zero);
    const size_t cell = y > 0 ? size_t(y - 1) * block->lanes : 0;
    return counting<Count>(kernels_).update_slots(
        slots, block->thresholds(), block->left<Count>(),
        y > 0 ? block->by_class<Count>() + cell : nullptr, x, step_);
  });
}

bool Modifier::update_block(Tree& tree, uint32_t node, const uint32_t* slots, uint32_t count) {
  Block* block = tree.cold[node].block();
  if (step_ > 0 && (block->width < counter_width(tree.cold[node].n) ||
                    wakes(tree, node, block, slots, count)))
    return false;
  for (uint32_t first = 0; first < block->slots; first += 64) {
    const SlotColumns columns = block->columns(first);
    uint64_t dirty = 0, special = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const float* x = store_.x(slots[i]);
      const int64_t y = store_.y(slots[i]);
      const uint64_t now = update_simple(block, columns, x, y);
      if (now == 0) continue;
      special |= now;
      for (uint64_t rest = now; rest != 0; rest &= rest - 1) {
        const uint32_t q = uint32_t(__builtin_ctzll(rest));
        bool lost = dirty >> q & 1;  // counted anew below: no use in following it
        Slot slot = block->slot(first + q);
        if (!lost && !update_slot(block, slot, x, y, lost)) return false;
        dirty |= uint64_t(lost) << q;
      }
    }
    if ((special | dirty) && !finish_slots(tree, node, block, first, special, dirty)) return false;
  }
  return true;
}

// Counts anew what could not be followed: dirty slots, and special ones that lack a candidate.
bool Modifier::finish_slots(Tree& tree, uint32_t node, Block* block, uint32_t first,
                            uint64_t special, uint64_t dirty) {
  for (uint64_t rest = special | dirty; rest != 0; rest &= rest - 1) {
    const uint32_t q = uint32_t(__builtin_ctzll(rest));
    Slot slot = block->slot(first + q);
    const bool lost = dirty >> q & 1;
    if (!lost && slot.kind == kNumeric && slot.missing == 0 && slot.mn == slot.mx)
      return false;  // its last missing value went
    if (!lost &&
        (slot.kind != kCategorical || !lacks_candidate(block, slot, tree.cold[node].n)))
      continue;
    ++stats.recounts;
    if (!grower_.recount(tree, node, block, slot)) return false;
    block->terms()[first + q] = 0;
    if (block->best_slot == first + q) block->best_slot = kNone;
  }
  return true;
}

// Whether a new row differs in an attribute that was skipped because it was constant.
bool Modifier::wakes(Tree& tree, uint32_t node, Block* block, const uint32_t* slots,
                     uint32_t count) {
  const Cold& c = tree.cold[node];
  uint32_t old = kNone;  // any row that was there before stands for all of them
  for (uint32_t i = 0; i < c.cap && old == kNone; ++i) {
    const uint32_t slot = tree.rows[c.lo + i];
    if (slot != kNone && std::find(slots, slots + count, slot) == slots + count) old = slot;
  }
  const float* is = store_.x(old);
  const uint64_t* skipped = block->skipped();
  for (uint32_t w = 0; w < block->words; ++w) {
    for (uint64_t rest = skipped[w]; rest != 0; rest &= rest - 1) {
      const uint32_t a = w * 64 + uint32_t(__builtin_ctzll(rest));
      const uint32_t bits = float_bits(is[a]);
      for (uint32_t i = 0; i < count; ++i)
        if (float_bits(store_.x(slots[i])[a]) != bits) return true;
    }
  }
  return false;
}

}  // namespace privml::forest
