// Requests to change the forest: checked as a whole, then applied tree by tree.
#include <algorithm>

#include "forest.hpp"

namespace privml::forest {

// Applies one change to all trees of the rows in these slots.
void Forest::apply(const Vec<uint32_t>& slots, Modifier& modifier) {
  modifier.stats = ChangeStats();
  const uint32_t k = params_.per_row;
  const uint32_t n = uint32_t(slots.size());
  std::vector<uint32_t>& members = members_;
  members.resize(size_t(n) * k);
  for (uint32_t i = 0; i < n; ++i)
    trees_of(params_, rows_.id(slots[i]), ws_.trees, members.data() + size_t(i) * k);
  const Publish at_end{*this, members.data(), uint32_t(members.size())};
  if (n == 1) {
    modifier.apply_one(trees_, members.data(), k, slots[0]);
    return;
  }
  std::vector<uint32_t> start(params_.trees + 1, 0);
  for (uint32_t t : members) ++start[t + 1];
  for (uint32_t t = 0; t < params_.trees; ++t) start[t + 1] += start[t];
  Vec<uint32_t> by_tree(members.size());
  std::vector<uint32_t> next(start.begin(), start.end() - 1);
  for (size_t i = 0; i < members.size(); ++i) by_tree[next[members[i]]++] = slots[i / k];
  for (uint32_t t = 0; t < params_.trees; ++t)
    if (start[t] < start[t + 1])
      modifier.apply(trees_[t], by_tree.data() + start[t], start[t + 1] - start[t]);
}

void Forest::unlearn(uint64_t n, const uint64_t* ids, ChangeStats& stats) {
  std::unique_lock hold(lock_);
  require_usable();
  Vec<uint32_t> slots(n);
  for (uint64_t i = 0; i < n; ++i) {
    slots[i] = rows_.find({ids[3 * i], ids[3 * i + 1], ids[3 * i + 2]});
    if (slots[i] == kNone) throw Refused(Fault::kUnknownId, "an id is not that of a living row");
  }
  if (n > 1) {
    std::sort(slots.begin(), slots.end());
    if (std::adjacent_find(slots.begin(), slots.end()) != slots.end())
      throw Refused(Fault::kDuplicateId, "an id is repeated");
  }
  unusable_ = true;  // stays so if memory runs out half-way
  apply(slots, deleter_);
  stats = deleter_.stats;
  for (uint32_t slot : slots) rows_.erase(slot);
  ++version_;
  stats.scrubbed += int64_t(n) * (int64_t(params_.features) * 4 + 24);
  unusable_ = false;
}

void Forest::learn(uint64_t n, const float* x, const int64_t* y, const uint64_t* ids,
                   ChangeStats& stats) {
  std::unique_lock hold(lock_);
  require_usable();
  check_rows(n, x, y, ids, false);
  if (n >= kNone - uint64_t(rows_.slots())) throw Refused(Fault::kValue, "too many rows");
  unusable_ = true;
  uint32_t classes = classes_;
  Vec<uint32_t> slots(n);
  for (uint64_t i = 0; i < n; ++i) {
    if (!params_.regression()) classes = std::max(classes, uint32_t(y[i]) + 1);
    slots[i] = rows_.add(x + i * params_.features, y[i],
                         {ids[3 * i], ids[3 * i + 1], ids[3 * i + 2]});
  }
  classes_ = classes;
  if (!params_.regression() && classes > params_.classes) {
    rebuild(1);  // every counter array is one class too narrow
    stats.trees += params_.trees;
  } else {
    apply(slots, adder_);
    stats = adder_.stats;
    ++version_;
  }
  unusable_ = false;
}

void Forest::purge() {
  std::unique_lock hold(lock_);
  require_usable();
  unusable_ = true;
  rows_.compact();
  rebuild(1);
  ws_.drop();
  unusable_ = false;
}

}  // namespace privml::forest
