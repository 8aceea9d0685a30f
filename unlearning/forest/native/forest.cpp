// Fitting, checks of incoming rows, and whole-forest maintenance.
#include "forest.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "../../../protocols/mpc/native/abi.hpp"

namespace privml::forest {
namespace {

const Kernels& kernels_for(int32_t isa) {
  if (isa >= kAvx512 && isa_usable(kAvx512)) return kernels_avx512();
  return isa >= kAvx2 && isa_usable(kAvx2) ? kernels_avx2() : kernels_scalar();
}

IdRecord record(const uint64_t* ids, uint64_t i) {
  return {ids[3 * i], ids[3 * i + 1], ids[3 * i + 2]};
}

}  // namespace

Forest::Forest(Params params)
    : params_(std::move(params)),
      classes_(params_.classes),
      kernels_(kernels_for(params_.isa)),
      trees_(params_.trees),
      grower_(params_, rows_, kernels_, ws_),
      deleter_(params_, rows_, kernels_, ws_, grower_, -1),
      adder_(params_, rows_, kernels_, ws_, grower_, 1) {
  if (!params_.regression()) params_.classes = std::max(params_.classes, 2u);
  for (uint8_t flag : params_.categorical) params_.any_categorical |= flag != 0;
  filled_.reserve(params_.trees);  // so that publish() never has to allocate
  roots_.reserve(params_.trees);
  place_.resize(params_.trees);
  rows_.reset(params_, 0);
  rows_.pack();
  for (uint32_t t = 0; t < params_.trees; ++t) {
    trees_[t].start(params_, root_key(params_.tree, t));
    make_leaf(params_, trees_[t], Tree::kRoot);
  }
  publish();
}

void Forest::require_usable() const {
  if (unusable_)
    throw Refused(Fault::kUnusable, "an earlier change ran out of memory; fit the forest again");
}

// Every row must be storable before the first is stored.
void Forest::check_rows(uint64_t n, const float* x, const int64_t* y, const uint64_t* ids,
                        bool fresh) const {
  const uint32_t p = params_.features;
  for (uint64_t i = 0; i < n; ++i) {
    for (uint32_t a = 0; a < p; ++a) {
      const float v = x[i * p + a];
      if (std::isinf(v)) throw Refused(Fault::kValue, "a feature is infinite");
      if (params_.categorical[a] && v == v &&
          !(v >= 0 && v < 16777216.0f && v == std::floor(v)))
        throw Refused(Fault::kValue, "a category code is not an integer in [0, 2^24)");
    }
    const int64_t limit = params_.regression() ? int64_t(1) << 47 : int64_t(1) << 16;
    if (y[i] >= limit || y[i] <= -limit || (!params_.regression() && y[i] < 0))
      throw Refused(Fault::kValue, "a target is out of range");
    if (ids[3 * i] > 1) throw Refused(Fault::kValue, "an id has an unknown type");
  }
  Vec<uint32_t> sorted(n);
  for (uint64_t i = 0; i < n; ++i) sorted[i] = uint32_t(i);
  const auto before = [&](uint32_t a, uint32_t b) {
    return std::lexicographical_compare(ids + 3 * a, ids + 3 * a + 3, ids + 3 * b,
                                        ids + 3 * b + 3);
  };
  std::sort(sorted.begin(), sorted.end(), before);
  for (uint64_t i = 1; i < n; ++i)
    if (record(ids, sorted[i]) == record(ids, sorted[i - 1]))
      throw Refused(Fault::kDuplicateId, "an id is repeated");
  if (fresh) return;
  for (uint64_t i = 0; i < n; ++i)
    if (rows_.find(record(ids, i)) != kNone)
      throw Refused(Fault::kDuplicateId, "an id is that of a living row");
}

void Forest::fit(uint64_t n, const float* x, const int64_t* y, const uint64_t* ids,
                 uint32_t threads) {
  std::unique_lock hold(lock_);
  if (n >= kNone) throw Refused(Fault::kValue, "too many rows");
  check_rows(n, x, y, ids, true);
  unusable_ = true;  // until the new forest stands
  for (Tree& tree : trees_) tree.clear();
  rows_.reset(params_, n);
  rows_.pack();
  const uint32_t p = params_.features;
  for (uint64_t i = 0; i < n; ++i) {
    if (!params_.regression()) classes_ = std::max(classes_, uint32_t(y[i]) + 1);
    rows_.add(x + i * p, y[i], record(ids, i));
  }
  rebuild(threads);
  unusable_ = false;
}

// All trees anew from the living rows.
void Forest::rebuild(uint32_t threads) {
  const Publish at_end{*this};
  if (!params_.regression()) params_.classes = std::max(classes_, 2u);
  rows_.pack();
  const uint32_t k = params_.per_row;
  Vec<uint32_t> members(size_t(rows_.slots()) * k);
  std::vector<uint32_t> sizes(params_.trees, 0);
  for (uint32_t slot = 0; slot < rows_.slots(); ++slot) {
    if (!rows_.living(slot)) continue;
    trees_of(params_, rows_.id(slot), ws_.trees, &members[size_t(slot) * k]);
    for (uint32_t i = 0; i < k; ++i) ++sizes[members[size_t(slot) * k + i]];
  }
  for (uint32_t t = 0; t < params_.trees; ++t) {
    if (sizes[t] > kMaxTreeRows) throw Refused(Fault::kValue, "more than 2^26 rows in one tree");
    trees_[t].start(params_, root_key(params_.tree, t));
    trees_[t].rows.reserve(sizes[t]);
  }
  for (uint32_t slot = 0; slot < rows_.slots(); ++slot) {
    if (!rows_.living(slot)) continue;
    for (uint32_t i = 0; i < k; ++i)
      trees_[members[size_t(slot) * k + i]].rows.push_back(slot);
  }
  grow_trees(threads);
  ++version_;
}

void Forest::grow_trees(uint32_t threads) {
  parallel(params_.trees, threads, [&](uint32_t from, uint32_t to) {
    Workspace own;
    Grower grower(params_, rows_, kernels_, own);
    for (uint32_t t = from; t < to; ++t) {
      Tree& tree = trees_[t];
      Cold& root = tree.cold[Tree::kRoot];
      root.n = root.cap = uint32_t(tree.rows.size());
      for (uint32_t slot : tree.rows) {
        if (params_.regression()) {
          const int64_t y = rows_.targets()[slot];
          tree.moments[Tree::kRoot].sum += y;
          tree.moments[Tree::kRoot].square += __int128(y) * y;
        } else if (params_.binary()) {
          root.ones += uint32_t(rows_.classes()[slot]);
        } else {
          ++tree.counts[uint32_t(rows_.classes()[slot])];
        }
      }
      grower.grow(tree, Tree::kRoot, 0);
      tree.hot.shrink_to_fit();
      tree.cold.shrink_to_fit();
      tree.counts.shrink_to_fit();
      tree.moments.shrink_to_fit();
    }
  });
}

void Forest::resolve_all(uint32_t threads) {
  const Publish at_end{*this};
  parallel(params_.trees, threads, [&](uint32_t from, uint32_t to) {
    Workspace own;
    Grower grower(params_, rows_, kernels_, own);
    for (uint32_t t = from; t < to; ++t)
      if (trees_[t].pending) grower.grow(trees_[t], Tree::kRoot, 0);
  });
}

bool Forest::resolve(int64_t budget_ns, uint32_t threads) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock hold(lock_);
  require_usable();
  if (budget_ns < 0) {
    resolve_all(threads);
    return true;
  }
  const Publish at_end{*this};
  const auto end = Clock::now() + std::chrono::nanoseconds(budget_ns);
  for (Tree& tree : trees_) {
    if (!tree.pending) continue;
    if (Clock::now() >= end) return false;
    grower_.grow(tree, Tree::kRoot, 0);
  }
  return true;
}

void Forest::contains(uint64_t n, const uint64_t* ids, uint8_t* out) {
  std::shared_lock hold(lock_);
  for (uint64_t i = 0; i < n; ++i) out[i] = rows_.find(record(ids, i)) != kNone;
}

void Forest::affected(uint64_t n, const uint64_t* ids, uint32_t* out) const {
  Vec<uint32_t> scratch;
  const uint32_t k = params_.per_row;
  for (uint64_t i = 0; i < n; ++i) {
    trees_of(params_, record(ids, i), scratch, out + i * k);
    std::sort(out + i * k, out + (i + 1) * k);
  }
}

void Forest::export_rows(uint64_t n, uint64_t* ids, float* x, int64_t* y) {
  std::shared_lock hold(lock_);
  if (n != rows_.size()) throw Refused(Fault::kChanged, "the number of rows changed");
  const uint32_t p = params_.features;
  uint64_t i = 0;
  for (uint32_t slot : rows_.canonical_order()) {
    const IdRecord id = rows_.id(slot);
    ids[3 * i] = id.kind, ids[3 * i + 1] = id.lo, ids[3 * i + 2] = id.hi;
    std::copy(rows_.x(slot), rows_.x(slot) + p, x + i * p);
    y[i++] = rows_.y(slot);
  }
}

void Forest::class_counts(uint32_t classes, int64_t* out) {
  std::shared_lock hold(lock_);
  if (classes != classes_) throw Refused(Fault::kChanged, "the number of classes changed");
  std::fill(out, out + classes_, 0);
  for (uint32_t slot = 0; slot < rows_.slots(); ++slot)
    if (rows_.living(slot)) ++out[rows_.y(slot)];
}

void Forest::stats(int64_t* out) {
  std::shared_lock hold(lock_);
  std::fill(out, out + kStatsWords, 0);
  out[kStatRows] = rows_.size();
  out[kStatClasses] = classes_;
  out[kStatRowBytes] = int64_t(rows_.bytes());
  out[kStatWorkBytes] = int64_t(ws_.bytes());
  for (const Tree& tree : trees_) {
    out[kStatTagged] += tree.pending;
    out[kStatMemberBytes] += int64_t(bytes_of(tree.rows));
    out[kStatMembers] += tree.cold[Tree::kRoot].n;
    out[kStatNodeBytes] += int64_t(tree.node_bytes());
    out[kStatNodes] += int64_t(tree.hot.size() - 2 * tree.free_.size()) - 1;
    for (const Cold& node : tree.cold) {
      if (!node.has_block) continue;
      ++out[kStatBlocks];
      out[kStatBlockBytes] += node.block()->bytes;
    }
  }
}

}  // namespace privml::forest
