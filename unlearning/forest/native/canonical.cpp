// Canonical form: what the model is, without the history it has in memory.
#include <algorithm>

#include "forest.hpp"

namespace privml::forest {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kTreeMarker = 0x45455254u;  // "TREE"
enum Kind : uint8_t { kKindEmpty = 0, kKindLeaf = 1, kKindSplit = 2 };

// Counts bytes when it has no memory to write to.
class Sink {
 public:
  Sink(uint8_t* at, uint64_t size) : at_(at), left_(size) {}

  void put(const void* from, size_t bytes) {
    total += bytes;
    if (at_ == nullptr) return;
    if (bytes > left_) throw Refused(Fault::kChanged, "the forest grew while it was written");
    std::memcpy(at_, from, bytes);
    at_ += bytes;
    left_ -= bytes;
  }

  template <class T>
  void number(T value) {
    put(&value, sizeof(T));
  }

  uint64_t total = 0;

 private:
  uint8_t* at_;
  uint64_t left_;
};

}  // namespace

class CanonicalWriter {
 public:
  CanonicalWriter(const Forest& forest, const uint32_t* order, uint32_t living, Sink& sink)
      : forest_(forest), params_(forest.params_), sink_(sink), order_(order, order + living) {
    place_.assign(std::max(params_.classes, 1u), 0);
    for (uint32_t c = 0; c < living; ++c) place_[order[c]] = c;
    slots_ = forest.rows_.canonical_order();
    index_.assign(forest.rows_.slots(), 0);
    for (uint32_t i = 0; i < slots_.size(); ++i) index_[slots_[i]] = i;
  }

  void write() {
    head();
    rows();
    for (const Tree& tree : forest_.trees_) {
      sink_.number(kTreeMarker);
      if (tree.empty()) sink_.number<uint8_t>(kKindEmpty);
      else nodes(tree);
    }
  }

 private:
  void head() {
    const Params& p = params_;
    sink_.put("PVMLFRST", 8);
    sink_.number(kVersion);
    const uint32_t values[] = {p.task,         p.trees,     p.per_row,  p.max_depth,
                               p.thresholds,   p.max_features, p.min_split, p.features,
                               uint32_t(order_.size()), p.target_bits};
    for (uint32_t value : values) sink_.number<uint64_t>(value);
    sink_.put(p.categorical.data(), p.categorical.size());
    sink_.put(p.key, sizeof p.key);
  }

  void rows() {
    sink_.number<uint64_t>(slots_.size());
    for (uint32_t slot : slots_) {
      const IdRecord id = forest_.rows_.id(slot);
      sink_.number(id.kind);
      sink_.number(id.lo);
      sink_.number(id.hi);
      sink_.put(forest_.rows_.x(slot), params_.features * sizeof(float));
      const int64_t y = forest_.rows_.y(slot);
      sink_.number<int64_t>(params_.regression() ? y : int64_t(place_[size_t(y)]));
    }
  }

  void totals(const Tree& tree, uint32_t node) {
    const Cold& cold = tree.cold[node];
    sink_.number<uint64_t>(cold.n);
    if (params_.regression()) {
      sink_.number<int64_t>(tree.moments[node].sum);
      return;
    }
    for (uint32_t c : order_) {
      if (params_.binary()) sink_.number<uint64_t>(c == 1 ? cold.ones : cold.n - cold.ones);
      else sink_.number<uint64_t>(tree.counts[size_t(node) * params_.classes + c]);
    }
  }

  void leaf(const Tree& tree, uint32_t node) {
    const Cold& cold = tree.cold[node];
    members_.clear();
    for (uint32_t i = 0; i < cold.cap; ++i) {
      const uint32_t slot = tree.rows[cold.lo + i];
      if (slot != kNone) members_.push_back(index_[slot]);
    }
    std::sort(members_.begin(), members_.end());
    sink_.put(members_.data(), members_.size() * sizeof(uint64_t));
  }

  void nodes(const Tree& tree) {
    std::vector<uint32_t> stack{Tree::kRoot};
    while (!stack.empty()) {
      const uint32_t node = stack.back();
      stack.pop_back();
      const bool split = tree.cold[node].state == kInner;
      sink_.number<uint8_t>(split ? kKindSplit : kKindLeaf);
      totals(tree, node);
      if (!split) {
        leaf(tree, node);
        continue;
      }
      const Hot& hot = tree.hot[node];
      sink_.number<uint32_t>(hot.attribute & kAttributeMask);
      sink_.number<uint32_t>(tree.cold[node].candidate);
      sink_.number<uint32_t>(tree.threshold_bits(node));
      stack.push_back(hot.child + 1);
      stack.push_back(hot.child);
    }
  }

  const Forest& forest_;
  const Params& params_;
  Sink& sink_;
  std::vector<uint32_t> order_, place_;
  Vec<uint32_t> slots_, index_;
  Vec<uint64_t> members_;
};

uint64_t Forest::canonical_size(const uint32_t* order, uint32_t living) {
  std::unique_lock hold(lock_);
  require_usable();
  for (uint32_t c = 0; c < living; ++c)
    if (order[c] >= std::max(params_.classes, 1u))
      throw Refused(Fault::kValue, "the class order names an unknown class");
  resolve_all(1);
  Sink sink(nullptr, 0);
  CanonicalWriter(*this, order, living, sink).write();
  return sink.total;
}

void Forest::canonical_write(const uint32_t* order, uint32_t living, uint8_t* out,
                             uint64_t size) {
  std::unique_lock hold(lock_);
  require_usable();
  resolve_all(1);
  Sink sink(out, size);
  CanonicalWriter(*this, order, living, sink).write();
  if (sink.total != size) throw Refused(Fault::kChanged, "the forest changed while it was written");
}

}  // namespace privml::forest
