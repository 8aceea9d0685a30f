// Answers of an exported predictor: trees as packed nodes without rows, counts or keys.
#include <algorithm>
#include <exception>
#include <new>
#include <vector>

#include "../../../protocols/mpc/native/abi.hpp"
#include "parallel.hpp"
#include "types.hpp"

namespace privml::forest {
namespace {

constexpr uint32_t kChains = 10;      // walks in flight, to hide the latency of memory
constexpr uint64_t kRowsAtOnce = 80;  // rows that share the pass over the trees

enum Flag : uint32_t { kLeafNode = 1u << 31, kCodeNode = 1u << 30, kMissing = 1u << 29 };
constexpr uint32_t kColumn = kMissing - 1;

// Mirrored by unlearning/forest/_walk.py. A leaf points to itself and holds its row of the values.
struct Packed {
  float threshold;
  uint32_t column;  // with flags
  uint32_t child[2];  // left and right
  uint64_t base;  // of the draws of a categorical node, or the row of the values
};
static_assert(sizeof(Packed) == 24);

struct FlatAbi {
  const Packed* nodes;
  const uint32_t* roots;
  const double* values;
  uint64_t trees, features, width, codes;  // codes: whether categorical nodes occur
};

// Without branches on the data, which no processor could predict. Some: categorical nodes occur.
template <bool kCodes>
inline uint32_t next(const Packed& node, const float* x) {
  const float v = x[node.column & kColumn];
  bool right = (v > node.threshold) | ((v != v) & !(node.column & kMissing));
  if (kCodes) {
    const bool drawn = draw_value(node.base, category_code(v)) >> 63;
    right = node.column & kCodeNode ? drawn : right;
  }
  return node.child[right];
}

// Sums over the trees in their order, so that the answer is that of the forest bit for bit.
template <bool kCodes>
void answer_rows(const FlatAbi& flat, uint64_t n, const float* x, double* out) {
  std::fill(out, out + n * flat.width, 0.0);
  for (uint64_t t = 0; t < flat.trees; ++t) {
    for (uint64_t first = 0; first < n; first += kChains) {
      const uint32_t count = uint32_t(std::min<uint64_t>(kChains, n - first));
      uint32_t at[kChains];
      const float* row[kChains];
      std::fill(at, at + kChains, flat.roots[t]);
      for (uint32_t c = 0; c < kChains; ++c)
        row[c] = x + (first + (c < count ? c : 0)) * flat.features;
      uint32_t leaf;
      do {
        leaf = kLeafNode;
        for (uint32_t c = 0; c < kChains; ++c) {
          at[c] = next<kCodes>(flat.nodes[at[c]], row[c]);
          leaf &= flat.nodes[at[c]].column;
        }
      } while (!leaf);
      for (uint32_t c = 0; c < count; ++c) {
        const double* value = flat.values + flat.nodes[at[c]].base * flat.width;
        double* sum = out + (first + c) * flat.width;
        for (uint64_t k = 0; k < flat.width; ++k) sum[k] += value[k];
      }
    }
  }
  for (uint64_t i = 0; i < n * flat.width; ++i) out[i] /= double(flat.trees);
}

// One row: the walks of several trees are in flight instead.
template <bool kCodes>
void answer_row(const FlatAbi& flat, const float* x, double* out) {
  std::fill(out, out + flat.width, 0.0);
  for (uint64_t first = 0; first < flat.trees; first += kChains) {
    const uint32_t count = uint32_t(std::min<uint64_t>(kChains, flat.trees - first));
    uint32_t at[kChains];
    for (uint32_t c = 0; c < kChains; ++c) at[c] = flat.roots[first + (c < count ? c : 0)];
    uint32_t leaf;
    do {
      leaf = kLeafNode;
      for (uint32_t c = 0; c < kChains; ++c) {
        at[c] = next<kCodes>(flat.nodes[at[c]], x);
        leaf &= flat.nodes[at[c]].column;
      }
    } while (!leaf);
    for (uint32_t c = 0; c < count; ++c) {
      const double* value = flat.values + flat.nodes[at[c]].base * flat.width;
      for (uint64_t k = 0; k < flat.width; ++k) out[k] += value[k];
    }
  }
  for (uint64_t k = 0; k < flat.width; ++k) out[k] /= double(flat.trees);
}

}  // namespace
}  // namespace privml::forest

PRIVML_API int32_t privml_forest_flat(const void* record, uint64_t n, const float* x, double* out,
                                      uint32_t threads) {
  using namespace privml::forest;
  if (record == nullptr || x == nullptr || out == nullptr) return privml::kBadArgument;
  const FlatAbi& flat = *static_cast<const FlatAbi*>(record);
  if (flat.trees == 0) return privml::kBadArgument;
  try {
    if (n == 1) {
      flat.codes ? answer_row<true>(flat, x, out) : answer_row<false>(flat, x, out);
      return privml::kOk;
    }
    const uint32_t parts = uint32_t((n + kRowsAtOnce - 1) / kRowsAtOnce);
    parallel(parts, threads, [&](uint32_t from, uint32_t to) {
      for (uint32_t i = from; i < to; ++i) {
        const uint64_t first = i * kRowsAtOnce, last = std::min(n, first + kRowsAtOnce);
        const float* rows = x + first * flat.features;
        double* answers = out + first * flat.width;
        flat.codes ? answer_rows<true>(flat, last - first, rows, answers)
                   : answer_rows<false>(flat, last - first, rows, answers);
      }
    });
    return privml::kOk;
  } catch (const std::bad_alloc&) {
    return privml::kNoMemory;
  } catch (const std::exception&) {
    return privml::kBadArgument;
  }
}
