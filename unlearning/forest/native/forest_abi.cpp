// C entry points of the forest. A handle is opaque; every call may come from any thread.
#include <time.h>

#include <memory>

#include "../../../protocols/mpc/native/abi.hpp"
#include "forest.hpp"

namespace privml::forest {
namespace {

thread_local std::string message;

// Mirrored by unlearning/forest/_core.py; new fields go to the end.
struct ForestParamsAbi {
  uint32_t size;  // of this record as the caller knows it
  uint32_t task, trees, per_row, max_depth, thresholds, max_features, min_split, features;
  uint32_t classes, target_bits, block_rows;
  int32_t isa;
  uint8_t key[32], occurrence[16], tree[16];
};

constexpr uint32_t kMaxPlain = 1u << 26;

Params read_params(const ForestParamsAbi& from, const uint8_t* categorical) {
  Params p;
  p.task = from.task;
  p.trees = from.trees;
  p.per_row = from.per_row;
  p.max_depth = from.max_depth;
  p.thresholds = from.thresholds;
  p.max_features = from.max_features;
  p.min_split = from.min_split;
  p.features = from.features;
  p.classes = from.task == kRegression ? 0 : from.classes;
  p.target_bits = from.target_bits;
  p.block_rows = from.block_rows;
  p.isa = from.isa;
  std::memcpy(p.key, from.key, sizeof p.key);
  p.occurrence = SipKey::from_bytes(from.occurrence);
  p.tree = SipKey::from_bytes(from.tree);
  p.categorical.assign(categorical, categorical + from.features);
  return p;
}

bool sound(const ForestParamsAbi& p) {
  return p.size == sizeof p && p.task <= kRegression && p.trees >= 1 && p.trees <= 1u << 16 &&
         p.per_row >= 1 && p.per_row <= p.trees && p.thresholds >= 1 && p.thresholds <= 1u << 12 &&
         p.max_depth <= kMaxDepth && p.max_features >= 1 && p.max_features <= 1u << 20 &&
         p.min_split >= 2 && p.min_split <= kMaxPlain && p.features >= 1 &&
         p.features <= 1u << 20 &&
         p.classes <= 1u << 16 && p.target_bits <= 62;
}

// Puts the floating-point unit into its default state: a caller's flush-to-zero or rounding mode
// would change the model.
class DefaultFloats {
 public:
#if defined(__x86_64__)
  DefaultFloats() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1f80); }
  ~DefaultFloats() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

enum Operation : uint8_t { kQuery = 0, kDelete = 1, kAdd = 2 };

int64_t thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

template <class Call>
int32_t guarded(void* handle, const Call& call) {
  if (handle == nullptr) return kBadArgument;
  const DefaultFloats floats;
  try {
    call(*static_cast<Forest*>(handle));
    return kOk;
  } catch (const Refused& refused) {
    message = refused.what();
    return int32_t(refused.fault);
  } catch (const std::bad_alloc&) {
    message = "out of memory";
    return kNoMemory;
  } catch (const std::exception& error) {
    message = error.what();
    return kBadArgument;
  }
}

}  // namespace
}  // namespace privml::forest

using privml::forest::Forest;
using privml::forest::guarded;

PRIVML_API const char* privml_forest_message() { return privml::forest::message.c_str(); }

PRIVML_API int32_t privml_forest_create(const void* record, const uint8_t* categorical,
                                        void** out) {
  privml::forest::ForestParamsAbi params;
  if (record == nullptr || categorical == nullptr || out == nullptr) return privml::kBadArgument;
  std::memcpy(&params, record, sizeof params);
  if (!privml::forest::sound(params)) return privml::kBadArgument;
  try {
    *out = std::make_unique<Forest>(read_params(params, categorical)).release();
    return privml::kOk;
  } catch (const std::bad_alloc&) {
    return privml::kNoMemory;
  }
}

PRIVML_API void privml_forest_destroy(void* handle) { delete static_cast<Forest*>(handle); }

PRIVML_API int32_t privml_forest_fit(void* handle, uint64_t n, const float* x, const int64_t* y,
                                     const uint64_t* ids, uint32_t threads) {
  return guarded(handle, [&](Forest& f) { f.fit(n, x, y, ids, threads); });
}

PRIVML_API int32_t privml_forest_learn(void* handle, uint64_t n, const float* x, const int64_t* y,
                                       const uint64_t* ids, int64_t* stats) {
  return guarded(handle, [&](Forest& f) {
    privml::forest::ChangeStats change;
    f.learn(n, x, y, ids, change);
    std::memcpy(stats, &change, sizeof change);
  });
}

PRIVML_API int32_t privml_forest_unlearn(void* handle, uint64_t n, const uint64_t* ids,
                                         int64_t* stats) {
  return guarded(handle, [&](Forest& f) {
    privml::forest::ChangeStats change;
    f.unlearn(n, ids, change);
    std::memcpy(stats, &change, sizeof change);
  });
}

PRIVML_API int32_t privml_forest_predict(void* handle, uint64_t n, const float* x, double* out,
                                         uint32_t classes, uint32_t threads) {
  return guarded(handle, [&](Forest& f) { f.predict(n, x, out, classes, threads); });
}

PRIVML_API int32_t privml_forest_contains(void* handle, uint64_t n, const uint64_t* ids,
                                          uint8_t* out) {
  return guarded(handle, [&](Forest& f) { f.contains(n, ids, out); });
}

PRIVML_API int32_t privml_forest_affected(void* handle, uint64_t n, const uint64_t* ids,
                                          uint32_t* out) {
  return guarded(handle, [&](Forest& f) { f.affected(n, ids, out); });
}

PRIVML_API int32_t privml_forest_resolve(void* handle, int64_t budget_ns, uint32_t threads,
                                         int32_t* done) {
  return guarded(handle, [&](Forest& f) { *done = f.resolve(budget_ns, threads); });
}

PRIVML_API int32_t privml_forest_purge(void* handle) {
  return guarded(handle, [&](Forest& f) { f.purge(); });
}

PRIVML_API int32_t privml_forest_rows(void* handle, uint64_t n, uint64_t* ids, float* x,
                                      int64_t* y) {
  return guarded(handle, [&](Forest& f) { f.export_rows(n, ids, x, y); });
}

PRIVML_API int32_t privml_forest_class_counts(void* handle, uint32_t classes, int64_t* out) {
  return guarded(handle, [&](Forest& f) { f.class_counts(classes, out); });
}

PRIVML_API int32_t privml_forest_canonical_size(void* handle, const uint32_t* order,
                                                uint32_t living, uint64_t* size) {
  return guarded(handle, [&](Forest& f) { *size = f.canonical_size(order, living); });
}

PRIVML_API int32_t privml_forest_canonical_write(void* handle, const uint32_t* order,
                                                 uint32_t living, uint8_t* out, uint64_t size) {
  return guarded(handle, [&](Forest& f) { f.canonical_write(order, living, out, size); });
}

PRIVML_API int32_t privml_forest_audit(void* handle, int32_t level, char* out, uint64_t size) {
  return guarded(handle, [&](Forest& f) {
    const std::string findings = f.audit(level);
    if (size == 0) return;
    const size_t length = std::min<size_t>(findings.size(), size - 1);
    std::memcpy(out, findings.data(), length);
    out[length] = 0;
  });
}

PRIVML_API int32_t privml_forest_hold(void* handle) {
  return guarded(handle, [](Forest& f) { f.hold(); });
}

PRIVML_API int32_t privml_forest_release(void* handle) {
  return guarded(handle, [](Forest& f) { f.release(); });
}

PRIVML_API int32_t privml_forest_renew(void* handle) {
  return guarded(handle, [](Forest& f) { f.renew(); });
}

PRIVML_API int32_t privml_forest_stats(void* handle, int64_t* out) {
  return guarded(handle, [&](Forest& f) { f.stats(out); });
}

// Runs single operations one after the other and times each by the CPU clock of this thread:
// kind[i] with row number row[i] of x and y, and id number id[i], as far as the kind has them.
PRIVML_API int32_t privml_forest_program(void* handle, uint64_t n, const uint8_t* kind,
                                         const uint32_t* row, const uint32_t* id, const float* x,
                                         const int64_t* y, const uint64_t* ids, uint32_t features,
                                         double* out, uint32_t classes, int64_t* ns) {
  return guarded(handle, [&](Forest& f) {
    using namespace privml::forest;
    ChangeStats change;
    for (uint64_t i = 0; i < n; ++i) {
      const float* values = x + size_t(row[i]) * features;
      const uint64_t* record = ids + size_t(id[i]) * 3;
      const int64_t start = thread_ns();
      if (kind[i] == kQuery) f.predict(1, values, out, classes, 1);
      else if (kind[i] == kDelete) f.unlearn(1, record, change);
      else f.learn(1, values, y + row[i], record, change);
      ns[i] = thread_ns() - start;
    }
  });
}
