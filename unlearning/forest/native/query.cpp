// Predictions. All of one call speaks of one version: it holds the shared lock, or, once it has met
// a tag, the exclusive one.
#include <cmath>

#include "forest.hpp"

namespace privml::forest {
namespace {

constexpr uint32_t kChains = 10;      // walks in flight, to hide the latency of memory
constexpr uint64_t kRowsAtOnce = 80;  // rows that share the pass over the trees

// Walks down kChains trees, or one tree for kChains rows, in step. Nodes at which a walk ends point
// to themselves, so the loop runs until the last one has arrived. Values must be present and no
// split categorical. kOne: all walks are of the row x[0].
template <bool kOne>
void walk_together(const Hot* const* base, const float* const* x, const Hot** at) {
  uint32_t attribute[kChains];
  for (uint32_t c = 0; c < kChains; ++c) attribute[c] = at[c]->attribute;
  uint32_t stop;
  do {
    stop = ~0u;
    for (uint32_t c = 0; c < kChains; ++c) {
      const Hot* h = at[c];
      const float* row = kOne ? x[0] : x[c];
      const bool right = !(row[attribute[c] & kAttributeMask] <= bits_float(h->a));
      h = base[c] + (h->child + right);
      at[c] = h;
      attribute[c] = h->attribute;
      stop &= attribute[c];
    }
  } while (!(stop & kStop));
}

// The same for any values and splits: the rule of goes_left, without branches on the data.
void walk_apart(const Tree* const* tree, const float* const* x, const Hot** at) {
  uint32_t stop;
  do {
    stop = ~0u;
    for (uint32_t c = 0; c < kChains; ++c) {
      const Hot* h = at[c];
      const Hot* base = tree[c]->hot.data();
      const uint32_t a = h->attribute & kAttributeMask;
      const float v = x[c][a];
      bool right = (v > bits_float(h->a)) | ((v != v) & !(h->attribute & kMissLeft));
      if (h->attribute & kByCode) right = !goes_left(*tree[c], uint32_t(h - base), x[c]);
      h = base + (h->child + (right & !(h->attribute & kStop)));
      at[c] = h;
      stop &= h->attribute;
    }
  } while (!(stop & kStop));
}

bool complete(const float* x, uint32_t p) {
  bool missing = false;
  for (uint32_t a = 0; a < p; ++a) missing |= x[a] != x[a];
  return !missing;
}

// Counts of a leaf of two classes.
struct Pair {
  uint32_t rows, ones;
};

Pair pair_of(const Tree& tree, const Hot* leaf) {
  if (leaf->b != kLookUp) return {leaf->b & 0xFFFF, leaf->b >> 16};
  const Cold& c = tree.cold[size_t(leaf - tree.hot.data())];
  return {c.n, c.ones};
}

// Adds the answer of a leaf to `out`.
void answer(const Params& params, const Tree& tree, const Hot* leaf, uint32_t width, double* out) {
  if (params.binary()) {
    const Pair pair = pair_of(tree, leaf);
    out[0] += double(pair.rows - pair.ones) / double(pair.rows);
    if (width > 1) out[1] += double(pair.ones) / double(pair.rows);
    return;
  }
  const uint32_t node = uint32_t(leaf - tree.hot.data());
  const double n = double(tree.cold[node].n);
  if (params.regression()) {
    out[0] += double(tree.moments[node].sum) / n / params.scale();
    return;
  }
  const uint32_t* counts = &tree.counts[size_t(node) * params.classes];
  for (uint32_t k = 0; k < width; ++k) out[k] += double(counts[k]) / n;
}

}  // namespace

// To be called when trees were changed and nobody else reads. Does nothing, quickly, if only these
// trees were changed and all of them are where they were.
void Forest::publish(const uint32_t* changed, uint32_t count) {
  bool same = changed != nullptr;
  for (uint32_t i = 0; i < count && same; ++i) {
    const Tree& tree = trees_[changed[i]];
    const uint32_t place = place_[changed[i]];
    same = tree.empty() ? place == kNone : place != kNone && roots_[place] == tree.hot.data();
  }
  if (same) return;
  filled_.clear();
  roots_.clear();
  for (uint32_t t = 0; t < params_.trees; ++t) {
    place_[t] = kNone;
    if (trees_[t].empty()) continue;
    place_[t] = uint32_t(filled_.size());
    filled_.push_back(t);
    roots_.push_back(trees_[t].hot.data());
  }
}

// One row through all trees. False if a tag was met; tags then lists the trees.
bool Forest::predict_row(const float* x, double* out, uint32_t width,
                         std::vector<uint32_t>* tags) const {
  for (uint32_t c = 0; c < width; ++c) out[c] = 0;
  const uint32_t trees = uint32_t(filled_.size());
  const bool together = !params_.any_categorical && complete(x, params_.features);
  const bool pairs = params_.binary() && width == 2;
  double zeros = 0, ones = 0;
  bool clean = true;
  const Hot* at[kChains];
  for (uint32_t first = 0; first < trees; first += kChains) {
    // The last group is filled up with trees that were there before.
    const uint32_t start = trees < kChains ? 0 : std::min(first, trees - kChains);
    const Hot* const* base = roots_.data() + start;
    const Hot* few[kChains];
    if (trees < kChains) {
      for (uint32_t c = 0; c < kChains; ++c) few[c] = roots_[c < trees ? c : 0];
      base = few;
    }
    std::copy(base, base + kChains, at);
    if (together) {
      walk_together<true>(base, &x, at);
    } else {
      const Tree* tree[kChains];
      const float* row[kChains];
      for (uint32_t c = 0; c < kChains; ++c) {
        tree[c] = &trees_[filled_[start + c < trees ? start + c : 0]];
        row[c] = x;
      }
      walk_apart(tree, row, at);
    }
    for (uint32_t c = first - start; c < kChains && start + c < trees; ++c) {
      const Tree& tree = trees_[filled_[start + c]];
      if (at[c]->attribute & kTagged) {
        clean = false;
        if (tags) tags->push_back(filled_[start + c]);
      } else if (pairs) {
        const Pair pair = pair_of(tree, at[c]);
        zeros += double(pair.rows - pair.ones) / double(pair.rows);
        ones += double(pair.ones) / double(pair.rows);
      } else {
        answer(params_, tree, at[c], width, out);
      }
    }
  }
  if (pairs) out[0] = zeros, out[1] = ones;
  for (uint32_t c = 0; c < width; ++c) out[c] /= double(trees);
  return clean;
}

// Several rows, tree by tree; the sums still grow in the order of the trees.
bool Forest::predict_rows(uint64_t n, const float* x, double* out, uint32_t width) const {
  const uint32_t p = params_.features;
  bool clean = true;
  const Tree* same[kChains];
  const Hot* base[kChains];
  const Hot* at[kChains];
  const float* row[kChains];
  for (uint64_t from = 0; from < n && clean; from += kRowsAtOnce) {
    const uint64_t to = std::min(n, from + kRowsAtOnce);
    bool together = !params_.any_categorical;
    for (uint64_t i = from; i < to && together; ++i) together = complete(x + i * p, p);
    std::fill(out + from * width, out + to * width, 0.0);
    for (uint32_t t : filled_) {
      const Tree& tree = trees_[t];
      for (uint64_t first = from; first < to; first += kChains) {
        const uint32_t count = uint32_t(std::min<uint64_t>(kChains, to - first));
        for (uint32_t c = 0; c < kChains; ++c) {
          row[c] = x + (first + (c < count ? c : 0)) * p;
          base[c] = at[c] = tree.hot.data();
          same[c] = &tree;
        }
        if (together) walk_together<false>(base, row, at);
        else walk_apart(same, row, at);
        for (uint32_t c = 0; c < count; ++c) {
          if (at[c]->attribute & kTagged) clean = false;
          else answer(params_, tree, at[c], width, out + (first + c) * width);
        }
      }
    }
    for (uint64_t i = from * width; i < to * width; ++i) out[i] /= double(filled_.size());
  }
  return clean;
}

// Decides every tag on the way of a row.
void Forest::clear_way(Grower& grower, Tree& tree, const float* x) {
  uint32_t node = Tree::kRoot, depth = 0;
  for (;;) {
    if (tree.cold[node].tagged()) grower.resolve(tree, node, depth);
    if (tree.cold[node].state == kLeaf) return;
    node = tree.hot[node].child + !goes_left(tree, node, x);
    ++depth;
  }
}

bool Forest::predict_shared(uint64_t n, const float* x, double* out, uint32_t width,
                            uint32_t threads, std::vector<uint32_t>* tags) const {
  if (n == 1) return predict_row(x, out, width, tags);
  std::atomic<bool> clean = true;
  const uint32_t parts = uint32_t((n + kRowsAtOnce - 1) / kRowsAtOnce);
  parallel(parts, threads, [&](uint32_t from, uint32_t to) {
    const uint64_t first = from * kRowsAtOnce, last = std::min(n, to * kRowsAtOnce);
    if (!predict_rows(last - first, x + first * params_.features, out + first * width, width))
      clean = false;
  });
  return clean;
}

// Decides every tag on the way of some rows; trees: the only ones with such tags.
void Forest::clear_ways(uint64_t n, const float* x, const std::vector<uint32_t>& trees,
                        uint32_t threads) {
  const Publish at_end{*this, trees.data(), uint32_t(trees.size())};
  if (n == 1) {
    for (uint32_t t : trees) clear_way(grower_, trees_[t], x);
    return;
  }
  parallel(uint32_t(trees.size()), threads, [&](uint32_t from, uint32_t to) {
    Workspace own;
    Grower grower(params_, rows_, kernels_, own);
    for (uint32_t i = from; i < to; ++i)
      for (uint64_t r = 0; r < n && trees_[trees[i]].pending; ++r)
        clear_way(grower, trees_[trees[i]], x + r * params_.features);
  });
}

void Forest::predict(uint64_t n, const float* x, double* out, uint32_t classes,
                     uint32_t threads) {
  const uint32_t width = params_.regression() ? 1 : classes;
  const auto check = [&] {
    require_usable();
    if (rows_.size() == 0) throw Refused(Fault::kEmpty, "no row is left");
    if (!params_.regression() && classes != classes_)
      throw Refused(Fault::kChanged, "the number of classes changed");
  };
  std::vector<uint32_t> tags;
  uint64_t version;
  {
    std::shared_lock hold(lock_);
    check();
    if (n == 0 || predict_shared(n, x, out, width, threads, &tags)) return;
    version = version_;
  }
  std::unique_lock hold(lock_);
  check();
  const bool known = n == 1 && version == version_;
  clear_ways(n, x, known ? tags : std::vector<uint32_t>(filled_), threads);
  predict_shared(n, x, out, width, threads, nullptr);
}

}  // namespace privml::forest
