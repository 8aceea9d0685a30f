// Invariants of the structure, recomputed from the rows. Level 0 checks ids and totals, level 1
// also every statistic and split against a fresh description of the node, level 2 also that
// nothing stays in memory that has been freed.
#include <algorithm>
#include <sstream>

#include "forest.hpp"

namespace privml::forest {

class Auditor {
 public:
  Auditor(Forest& forest, int level)
      : forest_(forest), params_(forest.params_), level_(level),
        grower_(params_, forest.rows_, forest.kernels_, ws_) {}

  std::string run() {
    Vec<uint32_t> scratch, of_row(params_.per_row);
    expected_.assign(params_.trees, {});
    const RowStore& rows = forest_.rows_;
    for (uint32_t slot = 0; slot < rows.slots(); ++slot) {
      if (!rows.living(slot)) {
        if (level_ >= 2) check_scrubbed(slot);
        continue;
      }
      if (rows.find(rows.id(slot)) != slot) report("an id does not lead to its row");
      trees_of(params_, rows.id(slot), scratch, of_row.data());
      for (uint32_t t : of_row) expected_[t].push_back(slot);
    }
    for (tree_ = 0; tree_ < params_.trees && findings_ < kMost; ++tree_)
      check_tree(forest_.trees_[tree_]);
    return text_.str();
  }

 private:
  static constexpr int kMost = 50;
  struct Job {
    uint32_t node, depth, lo, cap;
    uint64_t kappa;
    bool unsure;  // below a split that has to be confirmed
  };

  void report(const std::string& what) {
    if (findings_++ < kMost) text_ << what << '\n';
  }

  void report(uint32_t node, const char* what) {
    std::ostringstream line;
    line << "tree " << tree_ << " node " << node << ": " << what;
    report(line.str());
  }

  void require(bool good, uint32_t node, const char* what) {
    if (!good) report(node, what);
  }

  void check_scrubbed(uint32_t slot) {
    const float* x = forest_.rows_.x(slot);
    for (uint32_t a = 0; a < params_.features; ++a)
      if (float_bits(x[a]) != 0) return report("a freed row was not overwritten");
    if (forest_.rows_.y(slot) != 0) report("the target of a freed row was not overwritten");
  }

  void check_tree(Tree& tree) {
    Vec<uint32_t> held;
    for (uint32_t slot : tree.rows)
      if (slot != kNone) held.push_back(slot);
    std::sort(held.begin(), held.end());
    if (held != expected_[tree_]) report(0, "does not hold the rows that belong to it");
    std::vector<uint8_t> seen(tree.hot.size(), 0);
    uint32_t tags = 0;
    std::vector<Job> jobs{{Tree::kRoot, 0, 0, uint32_t(tree.rows.size()),
                           root_key(params_.tree, tree_), false}};
    seen[1] = 1;
    while (!jobs.empty() && findings_ < kMost) {
      const Job job = jobs.back();
      jobs.pop_back();
      seen[job.node] = 1;
      tags += tree.cold[job.node].tagged();
      check_node(tree, job);
      const uint32_t first = tree.cold[job.node].child;
      if (first == 0) continue;
      const uint32_t left_cap = tree.cold[first].cap;
      const bool unsure = job.unsure || tree.cold[job.node].state == kStale;
      jobs.push_back({first, job.depth + 1, job.lo, left_cap,
                      child_key(params_.tree, job.kappa, 0), unsure});
      jobs.push_back({first + 1, job.depth + 1, job.lo + left_cap, job.cap - left_cap,
                      child_key(params_.tree, job.kappa, 1), unsure});
    }
    require(tags == tree.pending, 0, "counts its tags wrongly");
    for (uint32_t first : tree.free_) seen[first] = seen[first + 1] = 1;
    for (uint32_t node = 0; node < seen.size(); ++node)
      require(seen[node], node, "neither reachable nor free");
    if (level_ < 2) return;
    for (uint32_t first : tree.free_)
      for (uint32_t node : {first, first + 1})
        require(tree.cold[node].key == 0 && tree.cold[node].n == 0 && tree.hot[node].b == 0, node,
                "freed and not overwritten");
  }

  void check_node(Tree& tree, const Job& job) {
    const Cold c = tree.cold[job.node];
    const Hot hot = tree.hot[job.node];
    require(c.lo == job.lo && c.cap == job.cap, job.node,
            "owns another piece than its parent gave");
    require(c.kappa() == job.kappa, job.node, "has another key than its path gives");
    require(bool(hot.attribute & kStop) == (c.state != kInner), job.node, "stops wrongly");
    require(bool(hot.attribute & kTagged) == c.tagged(), job.node, "is tagged wrongly");
    require((c.child != 0) == (c.state == kStale || c.state == kInner), job.node,
            "has children, or not, against its state");
    require(hot.child == (c.state == kInner ? c.child : job.node), job.node, "points elsewhere");
    require(c.state == kInner || hot.a == kInfinityBits, job.node, "does not hold queries");
    uint32_t n = 0, ones = 0;
    Moments moments;
    std::vector<uint32_t> counts(std::max(params_.classes, 1u), 0);
    for (uint32_t i = 0; i < c.cap; ++i) {
      const uint32_t slot = tree.rows[c.lo + i];
      if (slot == kNone) continue;
      ++n;
      const int64_t y = forest_.rows_.y(slot);
      if (params_.regression()) {
        moments.sum += y;
        moments.square += __int128(y) * y;
      } else {
        ++counts[size_t(y)];
        ones += y == 1;
      }
    }
    require(n == c.n, job.node, "has a wrong number of rows");
    require(n > 0 || job.node == Tree::kRoot || job.unsure, job.node, "is empty");
    if (c.state == kLeaf && params_.binary() && n < 0xFFFF)
      require(hot.b == (n | ones << 16), job.node, "answers with old counts");
    if (params_.regression())
      require(moments.sum == tree.moments[job.node].sum &&
                  moments.square == tree.moments[job.node].square,
              job.node, "has wrong moments");
    else if (params_.binary()) require(ones == c.ones, job.node, "has wrong counts");
    else
      for (uint32_t k = 0; k < params_.classes; ++k)
        require(counts[k] == tree.counts[size_t(job.node) * params_.classes + k], job.node,
                "has wrong counts");
    if (n == c.n && level_ >= 1) check_decision(tree, job);
  }

  void check_decision(Tree& tree, const Job& job) {
    const Cold c = tree.cold[job.node];
    const NodeTotals totals = totals_of(params_, tree, job.node);
    const bool trivial = trivial_leaf(params_, totals, job.depth);
    if (c.state == kFresh) {
      require(!c.has_block, job.node, "is undecided, yet has statistics");
      return;
    }
    if (c.state == kStale) {
      require(!c.has_block, job.node, "is to be confirmed, yet has statistics");
      return;
    }
    if (trivial) {
      require(c.state == kLeaf, job.node, "should be a leaf");
      return;
    }
    // Copied: the description replaces totals in the workspace only, the node stays as it is.
    Block* fresh = grower_.describe(tree, job.node, true);
    const Best best = best_candidate(params_, forest_.kernels_, fresh, totals, ws_);
    require((best.slot == kNone) == (c.state == kLeaf), job.node,
            "is a leaf for no reason, or not");
    if (best.slot != kNone && c.state != kLeaf) {
      const Split split = split_of(params_, fresh, best);
      const Hot& hot = tree.hot[job.node];
      require((hot.attribute & kAttributeMask) == split.attribute &&
                  c.candidate == split.candidate &&
                  tree.threshold_bits(job.node) == split.threshold &&
                  (!split.by_code || hot.b == split.code_sides) &&
                  bool(hot.attribute & kByCode) == split.by_code &&
                  bool(hot.attribute & kMissLeft) == split.miss_left,
              job.node, "is not split by its best candidate");
      if (c.state == kInner)
        require(tree.cold[c.child].n == split.left, job.node, "sends rows the wrong way");
    }
    if (c.has_block) {
      compare(job.node, c.block(), fresh);
      check_terms(job.node, c.block(), totals);
    }
    delete_block(fresh);
  }

  // The chosen candidate leads each slot, in exact arithmetic, for at least the slot's term.
  void check_terms(uint32_t node, Block* block, const NodeTotals& totals) {
    if (block->best_slot == kNone) return;
    const Best best = best_of_exact(params_, block, totals, 0, block->lanes, kNone, kNone);
    require(best.slot == block->best_slot && best.lane == block->best_lane, node,
            "remembers another choice");
    for (uint32_t q = 0; q < block->slots; ++q) {
      const SlotInfo& slot = block->info()[q];
      const uint32_t term = slot.kind == kTwoValued ? block->pair_term : block->terms()[q];
      if (term < block->now) continue;
      const bool nested = q == best.slot && slot.kind == kNumeric && slot.missing == 0;
      const Best other =
          best_of_exact(params_, block, totals, slot.lane, slot.lane + slot.lanes,
                        nested ? block->left_of(best.lane) : kNone, best.lane);
      if (other.slot == kNone) continue;
      require(double(term - block->now) <= (best.score - other.score) / 2, node,
              "is more certain of its split than it may be");
    }
  }

  // A slot may keep more candidates than a fresh one has if all values are one of two.
  void compare(uint32_t node, Block* kept, Block* fresh) {
    require(kept->slots == fresh->slots, node, "has another number of slots");
    if (kept->slots != fresh->slots) return;
    for (uint32_t q = 0; q < kept->slots; ++q) {
      const Slot a = kept->slot(q);
      const Slot b = fresh->slot(q);
      require(a.attribute == b.attribute, node, "has another attribute in a slot");
      require(a.mn == b.mn && a.mx == b.mx && a.at_mn == b.at_mn && a.at_mx == b.at_mx &&
                  a.missing == b.missing,
              node, "has a wrong range");
      const bool widened = a.kind == kNumeric && b.kind == kTwoValued;
      require(a.kind == b.kind || widened, node, "has a slot of another kind");
      if (a.attribute != b.attribute || (a.kind != b.kind && !widened)) continue;
      require(a.extra == b.extra, node, "has another late candidate");
      compare_lanes(node, kept, a, fresh, b);
    }
    require(std::equal(kept->skipped(), kept->skipped() + kept->words, fresh->skipped()), node,
            "skipped other attributes");
  }

  void compare_lanes(uint32_t node, Block* kept, const Slot& a, Block* fresh, const Slot& b) {
    for (uint32_t i = 0; i < std::min(a.used, b.used); ++i) {
      bool good = kept->left_of(a.lane + i) == fresh->left_of(b.lane + i);
      if (kept->sums)
        good &= kept->left_sums()[a.lane + i] == fresh->left_sums()[b.lane + i];
      else
        for (uint32_t c = 0; c < kept->channels; ++c)
          good &= kept->class_of(c, a.lane + i) == fresh->class_of(c, b.lane + i);
      if (a.kind == kNumeric && b.kind == kNumeric)
        good &= float_bits(kept->thresholds()[a.lane + i]) ==
                float_bits(fresh->thresholds()[b.lane + i]);
      require(good, node, "has a wrong candidate");
    }
  }

  Forest& forest_;
  const Params& params_;
  const int level_;
  Workspace ws_;
  Grower grower_;
  std::vector<Vec<uint32_t>> expected_;
  uint32_t tree_ = 0;
  int findings_ = 0;
  std::ostringstream text_;
};

std::string Forest::audit(int level) {
  std::unique_lock hold(lock_);
  require_usable();
  return Auditor(*this, level).run();
}

}  // namespace privml::forest
