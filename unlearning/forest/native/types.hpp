// Parameters, limits and the scrubbing containers of the forest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "prf.hpp"

namespace privml::forest {

enum Task : uint32_t { kClassification = 0, kRegression = 1 };

constexpr uint32_t kNone = 0xFFFFFFFFu;  // no row slot, no node, gap in a tree's row array
constexpr uint32_t kCategoryCap = 256;   // categorical candidates tried, see the format
constexpr uint32_t kMaxDepth = 255;
constexpr uint32_t kMaxTreeRows = 1u << 26;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Overwrites with zeros in a way the optimiser may not drop.
inline void scrub(void* at, size_t bytes) {
  if (bytes == 0) return;
  std::memset(at, 0, bytes);
  __asm__ volatile("" : : "r"(at) : "memory");
}

// Zeroes memory before giving it back: no freed buffer keeps anything of a row.
template <class T>
struct ScrubAllocator {
  using value_type = T;
  ScrubAllocator() = default;
  template <class U>
  ScrubAllocator(const ScrubAllocator<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* p, size_t n) {
    scrub(p, n * sizeof(T));
    ::operator delete(p, std::align_val_t(64));
  }
  bool operator==(const ScrubAllocator&) const { return true; }
};

template <class T>
using Vec = std::vector<T, ScrubAllocator<T>>;

// Grows by an eighth instead of doubling: memory is one of the published figures.
template <class T>
void grow_for(Vec<T>& v, size_t more) {
  const size_t need = v.size() + more;
  if (need > v.capacity()) v.reserve(need + need / 8 + 16);
}

template <class T>
size_t bytes_of(const Vec<T>& v) {
  return v.capacity() * sizeof(T);
}

struct Params {
  uint32_t task = kClassification;
  uint32_t trees = 1;         // T
  uint32_t per_row = 1;       // k
  uint32_t max_depth = 0;
  uint32_t thresholds = 1;    // s
  uint32_t max_features = 1;  // P
  uint32_t min_split = 2;     // m
  uint32_t features = 1;      // p
  uint32_t classes = 2;       // C, at least 2 inside; 0 for regression
  uint32_t target_bits = 0;
  uint32_t block_rows = 64;   // M: smaller nodes keep no candidate statistics
  int32_t isa = 0;
  uint8_t key[32] = {};
  SipKey occurrence, tree;
  std::vector<uint8_t> categorical;
  bool any_categorical = false;

  double scale() const { return double(uint64_t(1) << target_bits); }
  bool regression() const { return task == kRegression; }
  bool binary() const { return task == kClassification && classes == 2; }
  // Per-candidate class counters beside the left count; the first class is what is left over.
  uint32_t channels() const { return regression() ? 0 : classes - 1; }
};

struct IdRecord {
  uint64_t kind = 0, lo = 0, hi = 0;
  bool operator==(const IdRecord&) const = default;
};

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// One zero and one NaN pattern, so that equal values have equal bits.
inline float canonical_value(float x) { return x != x ? kNaN : x + 0.0f; }

inline uint32_t category_code(float x) {
  return x >= 0.0f && x < 4294967040.0f ? uint32_t(x) : kMissingCode;
}

// Trees of a row: partial Fisher-Yates over 0..T-1, the first k positions.
void trees_of(const Params& params, const IdRecord& id, Vec<uint32_t>& scratch, uint32_t* out);

}  // namespace privml::forest
