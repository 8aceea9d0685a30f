// Deletions and additions: keep the statistics of every node on the path exact, and replace or tag
// what is no longer what a fresh build would give.
#pragma once

#include "grower.hpp"

namespace privml::forest {

// What a change did; mirrored by the ctypes wrapper.
struct ChangeStats {
  int64_t trees = 0;        // walks from a root
  int64_t nodes = 0;        // splits replaced and nodes turned into leaves
  int64_t tags = 0;         // tags set
  int64_t recounts = 0;     // slots counted anew
  int64_t scrubbed = 0;     // bytes overwritten
  int64_t pending = 0;      // bytes freed and not yet overwritten
};

class Modifier {
 public:
  // step is -1 for deletions and +1 for additions.
  Modifier(const Params& params, const RowStore& rows, const Kernels& kernels, Workspace& ws,
           Grower& grower, int32_t step)
      : params_(params), store_(rows), kernels_(kernels), ws_(ws), step_(step), grower_(grower) {}

  ChangeStats stats;  // since the caller cleared it

  // Applies the change of these rows, all of them members of the tree. When deleting, the rows
  // still are in the store; when adding, they already are.
  void apply(Tree& tree, uint32_t* slots, uint32_t count);
  // The same for one row in several trees at once, so that waits for memory overlap.
  void apply_one(std::vector<Tree>& trees, const uint32_t* members, uint32_t count,
                 uint32_t slot);

 private:
  static constexpr uint32_t kTogether = 16;
  struct Path {
    Tree* tree;
    std::vector<uint32_t> nodes;  // from the root to the node that stores the row
  };
  void descend(Path* paths, uint32_t count, uint32_t slot);
  void follow(Path& path, const Path* next, uint32_t slot);
  static void fetch_block(const Tree& tree, uint32_t node);
  uint32_t find_place(const Tree& tree, const float* x) const;
  void take_out(Tree& tree, uint32_t node, uint32_t slot);
  void put_in(Tree& tree, uint32_t node, uint32_t slot);
  void move_id(Tree& tree, uint32_t node, uint32_t slot);
  void change(Tree& tree, uint32_t node, uint32_t depth, uint32_t* slots, uint32_t count);
  void update_totals(Tree& tree, uint32_t node, const uint32_t* slots, uint32_t count);
  bool visit(Tree& tree, uint32_t node, uint32_t depth, const uint32_t* slots, uint32_t count,
             uint32_t left_now);
  bool change_split(Tree& tree, uint32_t node, uint32_t depth, const NodeTotals& totals,
                    const uint32_t* slots, uint32_t count, uint32_t left_now);
  bool settle(Tree& tree, uint32_t node, const NodeTotals& totals, uint32_t left_now);
  bool finish_slots(Tree& tree, uint32_t node, Block* block, uint32_t first, uint64_t special,
                    uint64_t dirty);
  void tag_fresh(Tree& tree, uint32_t node, uint32_t depth);
  void become_leaf(Tree& tree, uint32_t node);

  // Statistics of one block; false if its slots are not those of a fresh build any more.
  bool update_block(Tree& tree, uint32_t node, const uint32_t* slots, uint32_t count);
  bool update_slot(Block* block, Slot& slot, const float* x, int64_t y, bool& dirty);
  uint64_t update_simple(Block* block, const SlotColumns& slots, const float* x, int64_t y);
  void update_numeric(Block* block, Slot& slot, float v, int64_t y, bool& dirty);
  bool update_two_valued(Block* block, Slot& slot, float v, int64_t y);
  void update_categorical(Block* block, Slot& slot, float v, int64_t y, bool& dirty);
  bool lacks_candidate(Block* block, const Slot& slot, uint32_t n) const;
  void add_lane(Block* block, uint32_t lane, int64_t y);
  bool wakes(Tree& tree, uint32_t node, Block* block, const uint32_t* slots, uint32_t count);

  const Params& params_;
  const RowStore& store_;
  const Kernels& kernels_;
  Workspace& ws_;
  const int32_t step_;
  Grower& grower_;
  Path paths_[kTogether];

};

}  // namespace privml::forest
