// The walk of a change down one tree.
#include <algorithm>
#include <stdexcept>

#include "modifier.hpp"

namespace privml::forest {

// The node that stores the ids of the rows like x: a leaf, or a tag without children.
uint32_t Modifier::find_place(const Tree& tree, const float* x) const {
  uint32_t node = Tree::kRoot;
  while (tree.cold[node].child) node = tree.cold[node].child + !goes_left(tree, node, x);
  return node;
}

void Modifier::take_out(Tree& tree, uint32_t node, uint32_t slot) {
  const Cold& c = tree.cold[node];
  uint32_t* at = tree.rows.data() + c.lo;
  const uint32_t i = kernels_.find(at, c.cap, slot);
  if (i == c.cap) throw std::logic_error("a living row is not where its tree should hold it");
  at[i] = kNone;
}

void Modifier::put_in(Tree& tree, uint32_t node, uint32_t slot) {
  for (int attempt = 0;; ++attempt) {
    const Cold& c = tree.cold[node];
    uint32_t* at = tree.rows.data() + c.lo;
    const uint32_t i = kernels_.find(at, c.cap, kNone);
    if (i < c.cap) {
      at[i] = slot;
      return;
    }
    if (attempt == 1) throw std::logic_error("no room for a row after making room");
    tree.respread();
  }
}

void Modifier::move_id(Tree& tree, uint32_t node, uint32_t slot) {
  if (step_ < 0) take_out(tree, node, slot);
  else put_in(tree, node, slot);
}

void Modifier::apply(Tree& tree, uint32_t* slots, uint32_t count) {
  const uint64_t scrubbed = tree.scrubbed;
  for (uint32_t i = 0; i < count; ++i)
    move_id(tree, find_place(tree, store_.x(slots[i])), slots[i]);
  change(tree, Tree::kRoot, 0, slots, count);
  stats.trees += count;
  stats.scrubbed += int64_t(tree.scrubbed - scrubbed) + 4 * int64_t(count);
}

void Modifier::apply_one(std::vector<Tree>& trees, const uint32_t* members, uint32_t count,
                         uint32_t slot) {
  for (uint32_t first = 0; first < count; first += kTogether) {
    const uint32_t some = std::min(kTogether, count - first);
    uint64_t scrubbed = 0;
    for (uint32_t i = 0; i < some; ++i) {
      paths_[i].tree = &trees[members[first + i]];
      scrubbed -= paths_[i].tree->scrubbed;
    }
    descend(paths_, some, slot);
    fetch_block(*paths_[0].tree, Tree::kRoot);
    if (paths_[0].nodes.size() > 1) fetch_block(*paths_[0].tree, paths_[0].nodes[1]);
    for (uint32_t i = 0; i < some; ++i) {
      follow(paths_[i], i + 1 < some ? &paths_[i + 1] : nullptr, slot);
      scrubbed += paths_[i].tree->scrubbed;
    }
    stats.trees += some;
    stats.scrubbed += int64_t(scrubbed) + 4 * int64_t(some);
  }
}

// Finds the paths of a row through several trees in step, brings the totals on them up to date,
// and moves its id in or out. Fetches what the next phase reads.
void Modifier::descend(Path* paths, uint32_t count, uint32_t slot) {
  const float* x = store_.x(slot);
  const bool binary = params_.binary();
  const uint32_t one = binary && store_.y(slot) > 0 ? uint32_t(step_) : 0;
  uint32_t at[kTogether] = {};
  uint32_t open = count;
  for (uint32_t i = 0; i < count; ++i) paths[i].nodes.clear();
  while (open > 0) {
    open = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (at[i] == kNone) continue;
      Tree& tree = *paths[i].tree;
      const uint32_t node = at[i];
      Cold& c = tree.cold[node];
      if (binary) {
        c.n += uint32_t(step_);
        c.ones += one;
      } else {
        update_totals(tree, node, &slot, 1);
      }
      paths[i].nodes.push_back(node);
      if (c.has_block) __builtin_prefetch(c.block());
      if (c.child == 0) {
        __builtin_prefetch(tree.rows.data() + c.lo);
        at[i] = kNone;
        continue;
      }
      ++open;
      const bool left = goes_left(tree, node, x);
      at[i] = c.child + !left;
      __builtin_prefetch(&tree.hot[at[i]]);
      __builtin_prefetch(&tree.cold[at[i]]);
    }
  }
  for (uint32_t i = 0; i < count; ++i) move_id(*paths[i].tree, paths[i].nodes.back(), slot);
}

// Blocks are read from start to end; their first line, which says how long they are, is there.
void Modifier::fetch_block(const Tree& tree, uint32_t node) {
  const Cold& c = tree.cold[node];
  if (!c.has_block) return;
  const char* at = reinterpret_cast<const char*>(c.block());
  const uint32_t bytes = std::min(c.block()->bytes, 4096u);
  for (uint32_t i = 64; i < bytes; i += 64) __builtin_prefetch(at + i, 1);
}

// Visits the nodes of one path; the blocks two nodes ahead are fetched meanwhile.
void Modifier::follow(Path& path, const Path* next, uint32_t slot) {
  Tree& tree = *path.tree;
  const uint32_t length = uint32_t(path.nodes.size());
  const auto fetch = [&](uint32_t depth) {
    if (depth < length) fetch_block(tree, path.nodes[depth]);
    else if (next && depth - length < next->nodes.size())
      fetch_block(*next->tree, next->nodes[depth - length]);
  };
  for (uint32_t depth = 0; depth < length; ++depth) {
    fetch(depth + 2);
    const uint32_t left_now = tree.cold[tree.cold[path.nodes[depth]].child].n;
    if (visit(tree, path.nodes[depth], depth, &slot, 1, left_now)) continue;
    fetch(length);
    fetch(length + 1);
    return;
  }
}

void Modifier::update_totals(Tree& tree, uint32_t node, const uint32_t* slots, uint32_t count) {
  Cold& c = tree.cold[node];
  c.n += uint32_t(step_) * count;
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t y = store_.y(slots[i]);
    if (params_.regression()) {
      tree.moments[node].sum += step_ * y;
      tree.moments[node].square += __int128(step_) * y * y;
    } else if (params_.binary()) {
      c.ones += uint32_t(step_) * uint32_t(y);
    } else {
      tree.counts[size_t(node) * params_.classes + size_t(y)] += uint32_t(step_);
    }
  }
}

void Modifier::become_leaf(Tree& tree, uint32_t node) {
  if (tree.cold[node].state != kLeaf) ++stats.nodes;
  tree.drop_children(node);
  tree.remove_block(node);
  make_leaf(params_, tree, node);
}

// Forgets everything but totals and rows; what is a leaf by its totals becomes one at once.
void Modifier::tag_fresh(Tree& tree, uint32_t node, uint32_t depth) {
  if (trivial_leaf(params_, totals_of(params_, tree, node), depth)) {
    become_leaf(tree, node);
    return;
  }
  if (!tree.cold[node].tagged()) ++stats.tags;
  tree.drop_children(node);
  tree.remove_block(node);
  tree.tag(node, kFresh);
}

void Modifier::change(Tree& tree, uint32_t node, uint32_t depth, uint32_t* slots,
                      uint32_t count) {
  if (count == 0) return;
  update_totals(tree, node, slots, count);
  // Sides by the split as it stands: a deleted row may change sides with a new threshold that cuts
  // the remaining rows as before, yet it is counted where it was.
  uint32_t left = 0;
  if (tree.cold[node].child) {
    uint32_t* middle = std::partition(
        slots, slots + count, [&](uint32_t slot) { return goes_left(tree, node, store_.x(slot)); });
    left = uint32_t(middle - slots);
  }
  const uint32_t child = tree.cold[node].child;
  const uint32_t left_now = tree.cold[child].n + uint32_t(step_) * left;
  if (!visit(tree, node, depth, slots, count, left_now)) return;
  change(tree, child, depth + 1, slots, left);
  change(tree, child + 1, depth + 1, slots + left, count - left);
}

// Brings one node up to date whose totals are; true if its children are to be visited. left_now:
// rows that its split, if it has children, sends left as things are now.
bool Modifier::visit(Tree& tree, uint32_t node, uint32_t depth, const uint32_t* slots,
                     uint32_t count, uint32_t left_now) {
  const Cold& c = tree.cold[node];
  const NodeTotals totals = totals_of(params_, tree, node);
  if (trivial_leaf(params_, totals, depth)) {
    become_leaf(tree, node);
    return false;
  }
  if (c.state == kLeaf) {
    // Deleting keeps a leaf one, but for categories none of whose draws told the codes apart: the
    // next attribute may come in. Adding may end any reason but the depth.
    if (step_ > 0 || params_.any_categorical) tag_fresh(tree, node, depth);
    else make_leaf(params_, tree, node);
    return false;
  }
  if (c.state == kFresh) return false;
  // A large share of the rows: building anew is cheaper than following each.
  const uint64_t before = step_ < 0 ? uint64_t(c.n) + count : c.n;
  if (3 * uint64_t(count) > before) {
    tag_fresh(tree, node, depth);
    return false;
  }
  if (c.has_block) return change_split(tree, node, depth, totals, slots, count, left_now);
  if (c.n > params_.block_rows) {  // grown: time for statistics
    tag_fresh(tree, node, depth);
    return false;
  }
  if (c.state == kInner) {
    ++stats.tags;
    tree.tag(node, kStale);
  }
  return true;
}

bool Modifier::change_split(Tree& tree, uint32_t node, uint32_t depth, const NodeTotals& totals,
                            const uint32_t* slots, uint32_t count, uint32_t left_now) {
  if (!update_block(tree, node, slots, count)) {
    if (totals.n <= params_.block_rows) {
      tag_fresh(tree, node, depth);
      return false;
    }
    ++stats.recounts;
    tree.set_block(node, grower_.describe(tree, node, true));
  }
  Block* block = tree.cold[node].block();
  if (choice_stands(params_, kernels_, block, totals, count, step_ > 0))
    return tree.cold[node].state == kInner;
  return settle(tree, node, totals, left_now);
}

// Makes the node's split the best candidate of its block; true if the children stay.
bool Modifier::settle(Tree& tree, uint32_t node, const NodeTotals& totals, uint32_t left_now) {
  Block* block = tree.cold[node].block();
  const Best best = best_candidate(params_, kernels_, block, totals, ws_);
  note_choice(params_, kernels_, block, totals, best);
  if (best.slot == kNone) {
    become_leaf(tree, node);
    return false;
  }
  const bool inner = tree.cold[node].state == kInner;
  if (is_best(tree, node, block, best)) return inner;
  const Split split = split_of(params_, block, best);
  if (inner && same_cut(tree, node, left_now, block, best, split)) {
    tree.set_split(node, split);  // children do not depend on how the cut is written
    return true;
  }
  if (inner) ++stats.nodes, ++stats.tags;
  tree.drop_children(node);
  tree.tag(node, kSplit);
  tree.set_split(node, split);
  return false;
}

}  // namespace privml::forest
