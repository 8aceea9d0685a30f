#include "tree.hpp"

namespace privml::forest {

void Tree::clear() {
  for (Cold& node : cold)
    if (node.has_block) delete_block(node.block());
  hot = {};
  cold = {};
  counts = {};
  moments = {};
  rows = {};
  free_ = {};
  pending = 0;
}

void Tree::start(const Params& params, uint64_t kappa) {
  clear();
  add_pair(params);  // the root and an unused partner, so that all pairs share a cache line
  cold[kRoot].key = kappa;
  tag(kRoot, kFresh);
}

uint32_t Tree::add_pair(const Params& params) {
  if (!free_.empty()) {
    const uint32_t first = free_.back();
    free_.pop_back();
    return first;
  }
  const uint32_t first = uint32_t(hot.size());
  const bool multi = !params.regression() && !params.binary();
  grow_for(hot, 2);
  grow_for(cold, 2);
  if (multi) grow_for(counts, 2 * params.classes);
  if (params.regression()) grow_for(moments, 2);
  Cold blank{};
  blank.state = kLeaf;
  for (uint32_t node : {first, first + 1}) hot.push_back(Hot{kStop, node, kInfinityBits, 0});
  cold.resize(first + 2, blank);
  if (multi) counts.resize(size_t(first + 2) * params.classes, 0);
  if (params.regression()) moments.resize(first + 2);
  return first;
}

void Tree::wipe_node(uint32_t node) {
  remove_block(node);
  set_state(node, kLeaf);
  scrubbed += sizeof(Hot) + sizeof(Cold);
  hot[node] = Hot{kStop, node, kInfinityBits, 0};
  cold[node] = Cold{};
  cold[node].state = kLeaf;
  if (!counts.empty()) {
    const size_t width = counts.size() / hot.size();
    std::memset(&counts[node * width], 0, width * sizeof(uint32_t));
  }
  if (!moments.empty()) moments[node] = Moments{};
}

// Works through the free list: what was appended last is scanned for children of its own.
void Tree::drop_children(uint32_t top) {
  if (cold[top].child == 0) return;
  size_t next = free_.size();
  free_.push_back(cold[top].child);
  cold[top].child = 0;
  for (; next < free_.size(); ++next) {
    const uint32_t first = free_[next];
    for (uint32_t node : {first, first + 1}) {
      if (const uint32_t child = cold[node].child) {
        __builtin_prefetch(&cold[child]);
        __builtin_prefetch(&hot[child]);
        free_.push_back(child);
      }
      wipe_node(node);
    }
  }
}

void Tree::set_block(uint32_t node, Block* block) {
  Cold& c = cold[node];
  if (c.has_block && c.block() != block) {
    scrubbed += c.block()->bytes;
    delete_block(c.block());
  }
  c.key = reinterpret_cast<uint64_t>(block);
  c.has_block = 1;
}

void Tree::remove_block(uint32_t node) {
  Cold& c = cold[node];
  if (!c.has_block) return;
  const uint64_t kappa = c.kappa();
  scrubbed += c.block()->bytes;
  delete_block(c.block());
  c.key = kappa;
  c.has_block = 0;
}

void Tree::set_state(uint32_t node, State state) {
  Cold& c = cold[node];
  pending -= c.tagged();
  c.state = state;
  pending += c.tagged();
}

void Tree::tag(uint32_t node, State state) {
  Hot& h = hot[node];
  if (state == kFresh) {
    h = Hot{kStop | kTagged, node, kInfinityBits, 0};
  } else if (!(h.attribute & kStop)) {
    if (!(h.attribute & kByCode)) h.b = h.a;
    h.attribute |= kStop | kTagged;
    h.child = node;
    h.a = kInfinityBits;
  } else {
    h.attribute |= kTagged;
  }
  set_state(node, state);
}

void Tree::open(uint32_t node) {
  Hot& h = hot[node];
  if (h.attribute & kStop) {
    h.a = h.attribute & kByCode ? 0 : h.b;
    if (!(h.attribute & kByCode)) h.b = 0;
    h.attribute &= ~(kStop | kTagged);
  }
  h.child = cold[node].child;
  set_state(node, kInner);
}

void Tree::close(uint32_t node, uint32_t b) {
  hot[node] = Hot{kStop, node, kInfinityBits, b};
  set_state(node, kLeaf);
}

void Tree::set_split(uint32_t node, const Split& split) {
  Hot& h = hot[node];
  h.attribute = split.attribute | (h.attribute & (kStop | kTagged)) |
                (split.by_code ? +kByCode : 0u) | (split.miss_left ? +kMissLeft : 0u);
  if (h.attribute & kStop) {
    h.b = split.by_code ? split.code_sides : split.threshold;
  } else {
    h.a = split.threshold;
    h.b = split.code_sides;
  }
  cold[node].candidate = uint16_t(split.candidate);
}

void Tree::respread() {
  struct Job {
    uint32_t node, stage;
  };
  Vec<uint32_t> fresh;
  fresh.reserve(rows.size() + rows.size() / 3 + cold.size());
  // In-order over the nodes that store rows; an inner node owns what its children own.
  std::vector<Job> jobs{{kRoot, 0}};
  while (!jobs.empty()) {
    Job& job = jobs.back();
    const uint32_t node = job.node;
    Cold& c = cold[node];
    const bool stores = c.child == 0;
    if (!stores && job.stage < 2) {
      const uint32_t child = c.child + job.stage;
      ++job.stage;
      jobs.push_back({child, 0});
      continue;
    }
    jobs.pop_back();
    if (!stores) {
      c.lo = cold[c.child].lo;
      c.cap = cold[c.child].cap + cold[c.child + 1].cap;
      continue;
    }
    const uint32_t lo = uint32_t(fresh.size());
    for (uint32_t i = 0; i < c.cap; ++i)
      if (rows[c.lo + i] != kNone) fresh.push_back(rows[c.lo + i]);
    const uint32_t kept = uint32_t(fresh.size()) - lo;
    fresh.resize(fresh.size() + kept / 4 + 1, kNone);
    c.lo = lo;
    c.cap = uint32_t(fresh.size()) - lo;
  }
  std::swap(rows, fresh);
}

size_t Tree::node_bytes() const {
  return bytes_of(hot) + bytes_of(cold) + bytes_of(counts) + bytes_of(moments) + bytes_of(free_);
}

}  // namespace privml::forest
