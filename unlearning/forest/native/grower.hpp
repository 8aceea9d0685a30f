// Builds nodes from rows: the definition of the model, with no history in it.
#pragma once

#include "rows.hpp"
#include "tree.hpp"

namespace privml::forest {

// Buffers of one thread; they hold features of rows and are scrubbed when dropped.
struct Workspace {
  Vec<uint32_t> rows, moved;        // row slots of the node
  Vec<float> columns;               // gathered values, one padded column per slot
  Vec<uint64_t> masks;              // per class but the first: which rows have it
  Vec<int64_t> targets;
  Vec<uint64_t> words, any, all;    // packed columns: one run of rows per word; OR and AND
  Vec<uint64_t> left;               // which rows go left
  Vec<uint32_t> order, swaps;       // permutation of the attributes, identity between uses
  Vec<uint64_t> skipped;            // attributes found constant
  Vec<uint64_t> known;              // attributes known to be constant
  Vec<uint8_t> block;               // block of a node that keeps none
  Vec<float> scores;
  Vec<uint32_t> lanes, class_totals;
  Vec<uint64_t> bases;
  Vec<uint32_t> code_table, codes, code_counts;
  Vec<uint32_t> trees;              // scratch of trees_of

  void drop() { *this = Workspace(); }
  size_t bytes() const;
};

// Points into the tree: not to be kept when nodes are added.
struct NodeTotals {
  uint32_t n, ones;
  const uint32_t* counts;   // more than two classes
  const Moments* moments;   // regression
};

struct Best {
  uint32_t slot = kNone, lane = 0, candidate = 0;
  double score = 0;
};

inline NodeTotals totals_of(const Params& params, const Tree& tree, uint32_t node) {
  const Cold& c = tree.cold[node];
  return {c.n, c.ones, tree.counts.data() + size_t(node) * params.classes,
          tree.moments.data() + node};
}
bool trivial_leaf(const Params& params, const NodeTotals& totals, uint32_t depth);
// Writes counts and answer of a leaf into its hot node.
void make_leaf(const Params& params, Tree& tree, uint32_t node);
float threshold(uint64_t kappa, uint32_t a, uint32_t j, float mn, float mx);
// Best admissible candidate of a block, or slot == kNone.
Best best_candidate(const Params& params, const Kernels& kernels, Block* block,
                    const NodeTotals& totals, Workspace& ws);
// The same without the screen over some lanes, for audits; leaves out a lane and those
// behind it with a left count.
Best best_of_exact(const Params& params, Block* block, const NodeTotals& totals, uint32_t from,
                   uint32_t to, uint32_t without_left, uint32_t without_lane);
// Notes the choice in its block, and for how long it is certain to stand.
void note_choice(const Params& params, const Kernels& kernels, Block* block,
                 const NodeTotals& totals, const Best& best);
// True if the choice noted in the block is the best candidate after `count` more changes.
bool choice_stands(const Params& params, const Kernels& kernels, Block* block,
                   const NodeTotals& totals, uint32_t count, bool adding);
Split split_of(const Params& params, Block* block, const Best& best);
// Whether the node's split is this candidate, written the same way.
bool is_best(const Tree& tree, uint32_t node, Block* block, const Best& best);
// Whether two cuts send the same rows left, given that the first sends `left` rows there now.
bool same_cut(const Tree& tree, uint32_t node, uint32_t left, Block* block, const Best& best,
              const Split& split);

// Sets, or adds to, the left counts of one lane from the bit mask of the rows that go left.
void add_rows(Block* block, uint32_t lane, const uint64_t* bits, const uint64_t* masks,
              uint32_t words, const int64_t* targets, bool add);

class Grower {
 public:
  Grower(const Params& params, const RowStore& rows, const Kernels& kernels, Workspace& ws)
      : params_(params), store_(rows), kernels_(kernels), ws_(ws) {}

  // Decides everything at and below a node.
  void grow(Tree& tree, uint32_t node, uint32_t depth);
  // One step at a tagged node: it becomes a leaf or gets children.
  void resolve(Tree& tree, uint32_t node, uint32_t depth);
  // Statistics of the rows of a node, in a block of its own or (keep = false) in the workspace.
  Block* describe(Tree& tree, uint32_t node, bool keep);
  // Recomputes one numeric slot of a block on the rows of the node; false if it does not fit.
  bool recount(Tree& tree, uint32_t node, Block* block, Slot& slot);

 private:
  static constexpr uint32_t kTile = 64, kFetch = 8, kDraws = 8;

  // A slot while it is being chosen.
  struct Found {
    uint32_t attribute;
    SlotKind kind;
    bool packed, examined;
    uint32_t column;  // gathered values, unless packed
    Range range;      // categorical: as codes, see examine()
  };

  void load_rows(const Tree& tree, uint32_t node);
  void load_labels();
  void load_words();
  void gather(const uint32_t* attributes, uint32_t count, float* const* to);
  uint32_t lines_of(const uint32_t* attributes, uint32_t count, uint32_t* lines) const;
  float* column(uint32_t i) { return ws_.columns.data() + size_t(i) * stride_; }
  void choose_slots(uint64_t kappa);
  bool next_attribute(uint64_t kappa, uint32_t& attribute);
  void restore_order();
  bool examine(Found& slot);
  bool examine_packed(Found& slot);
  Block* fill(uint64_t kappa, bool keep);
  void fill_numeric(Block* block, Slot& slot, const float* x);
  void fill_two_valued(Block* block, Slot& slot, const Found& found);
  void fill_categorical(Block* block, Slot& slot, const float* x);
  void add_missing(Block* block, Slot& slot, const float* x);
  uint32_t decide(Tree& tree, uint32_t node, uint32_t depth);
  void expand(Tree& tree, uint32_t node, uint32_t depth, const float* x);
  uint32_t confirm(Tree& tree, uint32_t node, uint32_t depth);
  void find_left(const Tree& tree, uint32_t node, const float* x);
  const float* chosen_column(uint32_t slot);
  void fill_children(Tree& tree, uint32_t node, uint32_t first, uint32_t depth);

  const Params& params_;
  const RowStore& store_;
  const Kernels& kernels_;
  Workspace& ws_;
  uint32_t n_ = 0, stride_ = 0, chunks_ = 0;
  uint32_t step_ = 0;  // attributes drawn so far
  uint64_t draws_[kDraws];
  std::vector<Found> found_;
  std::vector<uint32_t> wanted_;  // attributes to gather, and where to
  std::vector<float*> columns_;
};

}  // namespace privml::forest
