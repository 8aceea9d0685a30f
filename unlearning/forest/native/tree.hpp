// One tree: nodes in two parallel arrays (hot for queries, cold for changes) and one array of row
// slots of which every node owns a contiguous piece.
#pragma once

#include "block.hpp"

namespace privml::forest {

// High byte of Hot::attribute.
enum HotFlag : uint32_t {
  kStop = 0x80000000u,      // a query goes no further: a leaf, or a tag
  kTagged = 0x40000000u,    // with kStop: something must be decided first
  kByCode = 0x20000000u,    // categorical split
  kMissLeft = 0x10000000u,  // missing values go left
};
constexpr uint32_t kAttributeMask = 0x00FFFFFFu;
constexpr uint32_t kInfinityBits = 0x7F800000u;
constexpr uint32_t kLookUp = 0xFFFFFFFFu;

// A node at which queries stop points to itself with threshold +infinity: walks of several trees
// can go on in step without asking which of them have arrived.
struct Hot {
  uint32_t attribute;  // and flags
  uint32_t child;      // left child, the right one follows
  uint32_t a;          // threshold bits
  uint32_t b;          // sides of the codes 0..31, 1 = right; numeric tag: the threshold;
                       // leaf of two classes: n | ones << 16, or kLookUp if that does not fit
};
static_assert(sizeof(Hot) == 16);

// FRESH: nothing decided. SPLIT: split decided, no children. STALE: rows below changed, so that
// the split has to be confirmed. These three are tags.
enum State : uint8_t { kFresh = 0, kSplit = 1, kStale = 2, kInner = 3, kLeaf = 4 };

struct Cold {
  uint64_t key;  // the node's kappa, or its Block*, which then holds kappa
  uint32_t n;
  uint32_t ones;     // two classes: rows of the second
  uint32_t lo, cap;  // owned piece of Tree::rows
  uint32_t child;    // left child, 0 if there are no children
  uint16_t candidate;
  State state;
  uint8_t has_block;

  Block* block() const { return has_block ? reinterpret_cast<Block*>(key) : nullptr; }
  uint64_t kappa() const { return has_block ? reinterpret_cast<const Block*>(key)->kappa : key; }
  bool tagged() const { return state <= kStale; }
};
static_assert(sizeof(Cold) == 32);

// Exact first and second moments; n * square - sum^2 = 0 says that all targets are equal.
struct Moments {
  int64_t sum = 0;
  __int128 square = 0;
};

// A decision as it stands in a node.
struct Split {
  uint32_t attribute = 0, candidate = 0, threshold = 0, code_sides = 0, left = 0;
  bool by_code = false, miss_left = false;
};

struct Tree {
  Tree() = default;
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  Tree(Tree&&) = default;
  ~Tree() { clear(); }

  Vec<Hot> hot;
  Vec<Cold> cold;
  Vec<uint32_t> counts;   // more than two classes: C per node
  Vec<Moments> moments;   // regression
  Vec<uint32_t> rows;     // row slots, kNone where nothing is stored
  Vec<uint32_t> free_;    // first nodes of free pairs
  uint32_t pending = 0;   // tagged nodes
  uint64_t scrubbed = 0;  // bytes overwritten since the start

  static constexpr uint32_t kRoot = 0;

  void clear();
  void start(const Params& params, uint64_t kappa);
  // First of two adjacent nodes, zeroed.
  uint32_t add_pair(const Params& params);
  // Frees blocks and nodes below a node; the node itself stays.
  void drop_children(uint32_t node);
  void set_block(uint32_t node, Block* block);
  void remove_block(uint32_t node);

  // Each keeps hot and cold in step. tag() to kSplit or kStale keeps the split of the node.
  void tag(uint32_t node, State state);
  void open(uint32_t node);
  void close(uint32_t node, uint32_t b);  // leaf
  void set_split(uint32_t node, const Split& split);
  uint32_t threshold_bits(uint32_t node) const {
    const Hot& h = hot[node];
    return h.attribute & kByCode ? 0 : h.attribute & kStop ? h.b : h.a;
  }

  // Lays the row array out anew with room for more rows at every node that stores rows.
  void respread();
  bool empty() const { return cold.empty() || cold[kRoot].n == 0; }
  size_t node_bytes() const;

 private:
  void set_state(uint32_t node, State state);
  void wipe_node(uint32_t node);
};

// The one rule by which a row takes a side, in training, deletion and prediction alike.
inline bool goes_left(const Tree& tree, uint32_t node, const float* x) {
  const Hot& hot = tree.hot[node];
  const uint32_t a = hot.attribute & kAttributeMask;
  const float v = x[a];
  if (hot.attribute & kByCode) {
    const uint32_t code = category_code(v);
    if (code < 32) return !(hot.b >> code & 1);
    const Cold& cold = tree.cold[node];
    return !category_right(draw_base(cold.kappa(), kDrawCategory, a, cold.candidate), code);
  }
  const float w = bits_float(hot.attribute & kStop ? hot.b : hot.a);
  // NaN fails every comparison: <= sends it right, negated > sends it left.
  return hot.attribute & kMissLeft ? !(v > w) : v <= w;
}

}  // namespace privml::forest
