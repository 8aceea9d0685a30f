// Small rules about one node: totals, leaf rules, answers, decisions.
#include <cmath>

#include "grower.hpp"

namespace privml::forest {

bool trivial_leaf(const Params& params, const NodeTotals& t, uint32_t depth) {
  if (depth >= params.max_depth || t.n < params.min_split) return true;
  if (params.regression()) {
    // Below 2^124: the limits on targets keep n * max|y| under 2^62.
    const Moments& m = *t.moments;
    return __int128(t.n) * m.square == __int128(m.sum) * m.sum;
  }
  if (params.binary()) return t.ones == 0 || t.ones == t.n;
  for (uint32_t c = 0; c < params.classes; ++c)
    if (t.counts[c] != 0) return t.counts[c] == t.n;
  return true;
}

void make_leaf(const Params& params, Tree& tree, uint32_t node) {
  const Cold& c = tree.cold[node];
  const bool fits = params.binary() && c.n < 0xFFFF;
  tree.close(node, fits ? c.n | c.ones << 16 : kLookUp);
}

float threshold(uint64_t kappa, uint32_t a, uint32_t j, float mn, float mx) {
  const double u = double(draw(kappa, kDrawThreshold, a, j) >> 11) * 0x1p-53;
  const float w = float(double(mn) + u * (double(mx) - double(mn)));
  return w >= mx ? std::nextafterf(mx, -std::numeric_limits<float>::infinity()) : w;
}


// Threshold bits of a candidate; those of two-valued slots are not stored.
uint32_t threshold_of(Block* block, const Slot& slot, uint32_t lane) {
  if (slot.kind == kNumeric) return float_bits(block->thresholds()[lane]);
  return float_bits(
      threshold(block->kappa, slot.attribute, 0, bits_float(slot.mn), bits_float(slot.mx)));
}

Split split_of(const Params& params, Block* block, const Best& best) {
  const Slot slot = block->slot(best.slot);
  Split split;
  split.attribute = slot.attribute;
  split.candidate = best.candidate;
  split.left = block->left_of(best.lane);
  if (slot.kind == kCategorical) {
    split.by_code = true;
    const uint64_t base =
        draw_base(block->kappa, kDrawCategory, slot.attribute, best.candidate);
    for (uint32_t v = 0; v < 32; ++v) split.code_sides |= uint32_t(category_right(base, v)) << v;
    return split;
  }
  split.threshold = threshold_of(block, slot, best.lane);
  split.miss_left = best.candidate < params.thresholds &&
                    !missing_right(block->kappa, slot.attribute, best.candidate);
  return split;
}

bool is_best(const Tree& tree, uint32_t node, Block* block, const Best& best) {
  const Slot slot = block->slot(best.slot);
  if ((tree.hot[node].attribute & kAttributeMask) != slot.attribute ||
      tree.cold[node].candidate != best.candidate)
    return false;
  return slot.kind == kCategorical ||
         tree.threshold_bits(node) == threshold_of(block, slot, best.lane);
}

// Cuts of one numeric attribute are nested: with as many rows on the left they are one and the
// same, provided that missing values stay on their side.
bool same_cut(const Tree& tree, uint32_t node, uint32_t left, Block* block, const Best& best,
              const Split& split) {
  const uint32_t flags = tree.hot[node].attribute;
  if ((flags & kAttributeMask) != split.attribute) return false;
  if (tree.cold[node].candidate == split.candidate &&
      tree.threshold_bits(node) == split.threshold)
    return true;
  return !split.by_code && split.left == left &&
         (block->info()[best.slot].missing == 0 || split.miss_left == bool(flags & kMissLeft));
}

size_t Workspace::bytes() const {
  return bytes_of(rows) + bytes_of(moved) + bytes_of(columns) + bytes_of(masks) +
         bytes_of(targets) + bytes_of(words) + bytes_of(any) + bytes_of(all) + bytes_of(left) +
         bytes_of(order) + bytes_of(swaps) + bytes_of(skipped) + bytes_of(known) +
         bytes_of(block) + bytes_of(scores) + bytes_of(lanes) + bytes_of(class_totals) +
         bytes_of(bases) + bytes_of(code_table) + bytes_of(codes) + bytes_of(code_counts) +
         bytes_of(trees);
}

}  // namespace privml::forest
