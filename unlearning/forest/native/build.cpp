// Decisions and children: FRESH -> leaf or SPLIT -> inner node with FRESH children.

#include <algorithm>

#include "grower.hpp"

namespace privml::forest {

Block* Grower::describe(Tree& tree, uint32_t node, bool keep) {
  load_rows(tree, node);
  load_labels();
  load_words();
  const uint64_t kappa = tree.cold[node].kappa();
  choose_slots(kappa);
  return fill(kappa, keep);
}

bool Grower::recount(Tree& tree, uint32_t node, Block* block, Slot& slot) {
  load_rows(tree, node);
  load_labels();
  if (ws_.columns.size() < stride_) ws_.columns.resize(stride_);
  if (ws_.left.size() < chunks_) ws_.left.resize(chunks_);
  float* x = column(0);
  gather(&slot.attribute, 1, &x);
  const Range r = kernels_.range(x, n_);
  if (r.missing == n_ || !(r.mn < r.mx || r.missing > 0)) return false;
  if (slot.kind == kCategorical) {
    fill_categorical(block, slot, x);
    return true;
  }
  if (params_.thresholds + (r.missing > 0) > slot.lanes) return false;
  slot.mn = float_bits(r.mn);
  slot.mx = float_bits(r.mx);
  slot.at_mn = r.at_mn;
  slot.at_mx = r.at_mx;
  slot.missing = r.missing;
  fill_numeric(block, slot, x);
  return true;
}

// Chooses the node's split and returns its slot, or kNone if the node is a leaf.
uint32_t Grower::decide(Tree& tree, uint32_t node, uint32_t depth) {
  const NodeTotals totals = totals_of(params_, tree, node);
  if (trivial_leaf(params_, totals, depth)) {
    tree.remove_block(node);
    make_leaf(params_, tree, node);
    return kNone;
  }
  const bool keep = totals.n > params_.block_rows;
  Block* block = describe(tree, node, keep);
  const Best best = best_candidate(params_, kernels_, block, totals, ws_);
  if (best.slot == kNone) {
    if (keep) delete_block(block);
    make_leaf(params_, tree, node);
    return kNone;
  }
  const Split split = split_of(params_, block, best);
  if (keep) {
    note_choice(params_, kernels_, block, totals, best);
    tree.set_block(node, block);
  }
  tree.tag(node, kSplit);
  tree.set_split(node, split);
  return best.slot;
}

// Values of the attribute in a slot just described, if they were gathered.
const float* Grower::chosen_column(uint32_t slot) {
  return found_[slot].packed ? nullptr : column(found_[slot].column);
}

// Bit mask of the loaded rows that the node's split sends left; x: its column, if at hand.
void Grower::find_left(const Tree& tree, uint32_t node, const float* x) {
  const Hot& hot = tree.hot[node];
  const uint32_t a = hot.attribute & kAttributeMask;
  if (ws_.columns.size() < stride_) ws_.columns.resize(stride_);
  if (ws_.left.size() < chunks_) ws_.left.resize(chunks_);
  if (x == nullptr) {
    float* to = column(0);
    gather(&a, 1, &to);
    x = to;
  }
  if (hot.attribute & kByCode) {
    const uint64_t base =
        draw_base(tree.cold[node].kappa(), kDrawCategory, a, tree.cold[node].candidate);
    std::fill(ws_.left.begin(), ws_.left.begin() + chunks_, 0);
    for (uint32_t i = 0; i < n_; ++i)
      ws_.left[i / kChunk] |= uint64_t(!category_right(base, category_code(x[i])))
                              << (i % kChunk);
    return;
  }
  kernels_.mask_le(x, n_, bits_float(tree.threshold_bits(node)), ws_.left.data());
  if (hot.attribute & kMissLeft)
    for (uint32_t i = 0; i < n_; ++i)
      ws_.left[i / kChunk] |= uint64_t(x[i] != x[i]) << (i % kChunk);
}

// Splits the node's piece of the row array; gaps are shared in proportion.
void Grower::fill_children(Tree& tree, uint32_t node, uint32_t first, uint32_t depth) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < chunks_; ++i) left += uint32_t(__builtin_popcountll(ws_.left[i]));
  const Cold parent = tree.cold[node];
  const uint64_t kappa = parent.kappa();
  const uint32_t gap = parent.cap - n_;
  const uint32_t left_cap = left + uint32_t(uint64_t(gap) * left / n_);
  Cold* child = &tree.cold[first];
  uint32_t* to = tree.rows.data() + parent.lo;
  if (ws_.moved.size() < n_ + 1) ws_.moved.resize(n_ + n_ / 8 + 64);
  uint32_t* right = ws_.moved.data();
  uint32_t lefts = 0, rights = 0;
  for (uint32_t from = 0; from < n_; from += kChunk) {
    uint64_t sides = ws_.left[from / kChunk];
    for (uint32_t i = from; i < std::min(n_, from + kChunk); ++i, sides >>= 1) {
      // Both are written, one counts: no branch. There is a right row, so `to` has room.
      to[lefts] = right[rights] = ws_.rows[i];
      lefts += sides & 1;
      rights += ~sides & 1;
    }
  }
  std::fill(to + lefts, to + left_cap, kNone);
  std::copy(right, right + rights, to + left_cap);
  std::fill(to + left_cap + rights, to + parent.cap, kNone);
  for (uint32_t b = 0; b < 2; ++b) {
    child[b].key = child_key(params_.tree, kappa, b);
    child[b].n = b ? n_ - left : left;
    child[b].lo = parent.lo + (b ? left_cap : 0);
    child[b].cap = b ? parent.cap - left_cap : left_cap;
  }
  if (params_.regression()) {
    Moments m;
    for (uint32_t i = 0; i < n_; ++i) {
      if (!(ws_.left[i / kChunk] >> (i % kChunk) & 1)) continue;
      m.sum += ws_.targets[i];
      m.square += __int128(ws_.targets[i]) * ws_.targets[i];
    }
    tree.moments[first] = m;
    tree.moments[first + 1] = {tree.moments[node].sum - m.sum,
                               tree.moments[node].square - m.square};
  } else if (params_.binary()) {
    uint32_t ones = 0;
    for (uint32_t i = 0; i < chunks_; ++i)
      ones += uint32_t(__builtin_popcountll(ws_.left[i] & ws_.masks[i]));
    child[0].ones = ones;
    child[1].ones = parent.ones - ones;
  } else {
    const uint32_t classes = params_.classes;
    uint32_t* of = &tree.counts[size_t(first) * classes];
    uint32_t rest = left;
    for (uint32_t c = 1; c < classes; ++c) {
      uint32_t hits = 0;
      for (uint32_t i = 0; i < chunks_; ++i)
        hits += uint32_t(
            __builtin_popcountll(ws_.left[i] & ws_.masks[size_t(c - 1) * chunks_ + i]));
      of[c] = hits;
      rest -= hits;
    }
    of[0] = rest;
    for (uint32_t c = 0; c < classes; ++c)
      of[classes + c] = tree.counts[size_t(node) * classes + c] - of[c];
  }
  for (uint32_t b = 0; b < 2; ++b) {
    if (trivial_leaf(params_, totals_of(params_, tree, first + b), depth + 1))
      make_leaf(params_, tree, first + b);
    else tree.tag(first + b, kFresh);
  }
}

// The rows and labels of the node are loaded.
void Grower::expand(Tree& tree, uint32_t node, uint32_t depth, const float* x) {
  find_left(tree, node, x);
  const uint32_t first = tree.add_pair(params_);
  fill_children(tree, node, first, depth);
  tree.cold[node].child = first;
  tree.open(node);
}

// Looks again at the split of a node whose rows changed. kNone if it stands, or the node became a
// leaf; otherwise the slot of the new one, whose children are to be built.
uint32_t Grower::confirm(Tree& tree, uint32_t node, uint32_t depth) {
  const NodeTotals totals = totals_of(params_, tree, node);
  Best best;
  Block* block = nullptr;
  if (!trivial_leaf(params_, totals, depth)) {
    block = describe(tree, node, false);
    best = best_candidate(params_, kernels_, block, totals, ws_);
  }
  if (best.slot == kNone) {
    tree.drop_children(node);
    make_leaf(params_, tree, node);
    return kNone;
  }
  const Split split = split_of(params_, block, best);
  const bool stands =
      same_cut(tree, node, tree.cold[tree.cold[node].child].n, block, best, split);
  tree.set_split(node, split);
  if (stands) {
    tree.open(node);
    return kNone;
  }
  tree.drop_children(node);
  tree.tag(node, kSplit);
  return best.slot;
}

void Grower::resolve(Tree& tree, uint32_t node, uint32_t depth) {
  const State state = tree.cold[node].state;
  if (state == kSplit) {
    load_rows(tree, node);
    load_labels();
    expand(tree, node, depth, nullptr);
    return;
  }
  uint32_t slot = kNone;
  if (state == kStale) slot = confirm(tree, node, depth);
  else if (state == kFresh) slot = decide(tree, node, depth);
  if (slot != kNone) expand(tree, node, depth, chosen_column(slot));
}

void Grower::grow(Tree& tree, uint32_t top, uint32_t top_depth) {
  struct Job {
    uint32_t node, depth;
  };
  std::vector<Job> jobs{{top, top_depth}};
  while (!jobs.empty()) {
    const Job job = jobs.back();
    jobs.pop_back();
    resolve(tree, job.node, job.depth);
    const uint32_t first = tree.cold[job.node].child;
    if (first == 0) continue;
    jobs.push_back({first + 1, job.depth + 1});
    jobs.push_back({first, job.depth + 1});
  }
}

}  // namespace privml::forest
