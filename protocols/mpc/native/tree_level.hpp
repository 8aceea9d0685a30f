// One level of a comparison tree on packed bit planes; boolean/level.py defines it. A product of K
// opened inputs is a fold of a table of 2^K shares: entry s holds the share of the product of the
// masks in set s, and input i replaces its mask: t[s] = t[s with i] ^ (opened_i & t[s without i]).
// Static, because each instruction set must compile its own copy; V is a vector of words.
#pragma once

#include <cstring>

#include "bits.hpp"

namespace privml {
namespace {

constexpr int64_t kLevelTile = 512;  // words of each plane that are walked while they are cached

// Where the planes of one element row begin.
struct LevelRow {
  const uint64_t *opened, *masks, *dealt;
  int64_t words, inputs;
  uint64_t one;

  const uint64_t* share(int32_t entry) const {
    return entry < inputs ? masks + entry * words : dealt + (entry - inputs) * words;
  }
};

template <int K, typename V>
int64_t add_products(const uint64_t* const* open, const uint64_t* const* share, uint64_t one,
                     int64_t from, int64_t to, uint64_t* out) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(uint64_t);
  const auto load = [](const uint64_t* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  int64_t w = from;
  for (; w + kLanes <= to; w += kLanes) {
    V t[1 << K];
    t[0] = V{} | one;
#pragma GCC unroll 16
    for (int s = 1; s < 1 << K; ++s) t[s] = load(share[s - 1] + w);
#pragma GCC unroll 4
    for (int i = K - 1; i >= 0; --i) {
      const V o = load(open[i] + w);
      for (int s = 0; s < 1 << i; ++s) t[s] = t[s + (1 << i)] ^ (o & t[s]);
    }
    const V sum = load(out + w) ^ t[0];
    std::memcpy(out + w, &sum, sizeof sum);
  }
  return w;
}

template <typename V, int K>
const int32_t* add_term(const LevelRow& row, const int32_t* term, int64_t from, int64_t to,
                        uint64_t* out) {
  const uint64_t *open[K], *share[(1 << K) - 1];
  for (int i = 0; i < K; ++i) open[i] = row.opened + *term++ * row.words;
  for (const uint64_t*& s : share) s = row.share(*term++);
  from = add_products<K, V>(open, share, row.one, from, to, out);
  add_products<K, uint64_t>(open, share, row.one, from, to, out);
  return term;
}

// Words from .. to of one new plane; returns the recipe of the next.
template <typename V>
const int32_t* add_plane(const LevelRow& row, const int32_t* recipe, const uint64_t* old,
                         int64_t from, int64_t to, uint64_t* out) {
  const size_t bytes = size_t(to - from) * sizeof(uint64_t);
  const int32_t start = *recipe++;
  if (start < 0)
    std::memset(out + from, 0, bytes);
  else
    std::memcpy(out + from, old + start * row.words + from, bytes);
  for (int32_t terms = *recipe++; terms > 0; --terms) switch (*recipe++) {
      case 2: recipe = add_term<V, 2>(row, recipe, from, to, out); break;
      case 3: recipe = add_term<V, 3>(row, recipe, from, to, out); break;
      case 4: recipe = add_term<V, 4>(row, recipe, from, to, out); break;
      case 5: recipe = add_term<V, 5>(row, recipe, from, to, out); break;
      case 6: recipe = add_term<V, 6>(row, recipe, from, to, out); break;
      case 7: recipe = add_term<V, 7>(row, recipe, from, to, out); break;
      default: recipe = add_term<V, 8>(row, recipe, from, to, out);
    }
  return recipe;
}

// out_i = plane at[i] of lt, then eq, under mask i.
void tree_masked(const TreeLevel& x, uint64_t* out) {
  const int64_t words = x.words;
  for (int64_t c = 0; c < x.count; ++c)
    for (int64_t i = 0; i < x.inputs; ++i) {
      const int64_t plane = x.recipe[i], row = c * x.inputs + i;
      const uint64_t* from = plane < x.chunks ? x.lt + (c * x.chunks + plane) * words
                                              : x.eq + ((c - 1) * x.chunks + plane) * words;
      for (int64_t w = 0; w < words; ++w)
        out[row * words + w] = from[w] ^ x.masks[row * words + w];
    }
}

template <typename V>
void tree_level(const TreeLevel& x) {
  const int64_t words = x.words;
  for (int64_t c = 0; c < x.count; ++c) {
    const LevelRow row{x.opened + c * x.inputs * words, x.masks + c * x.inputs * words,
                       x.dealt + c * x.products * words, words, x.inputs, x.one};
    const int64_t old = c * x.chunks * words, fresh = c * x.groups * words;
    for (int64_t from = 0; from < words; from += kLevelTile) {
      const int64_t to = words - from < kLevelTile ? words : from + kLevelTile;
      const int32_t* recipe = x.recipe;
      for (int64_t g = 0; g < x.groups; ++g) {
        const int64_t at = fresh + g * words;
        recipe = add_plane<V>(row, recipe, x.lt + old, from, to, x.new_lt + at);
        recipe = add_plane<V>(row, recipe, x.eq + old, from, to, x.new_eq + at);
      }
    }
  }
}

}  // namespace
}  // namespace privml
