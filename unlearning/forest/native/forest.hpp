// The forest: rows, trees, and the operations behind the C ABI.
#pragma once

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <shared_mutex>
#include <string>

#include "lock.hpp"
#include "modifier.hpp"
#include "parallel.hpp"

namespace privml::forest {

enum class Fault { kValue = 16, kUnknownId = 17, kDuplicateId = 18, kEmpty = 19, kUnusable = 20,
                   kChanged = 21 };

struct Refused : std::runtime_error {
  Refused(Fault f, const std::string& what) : std::runtime_error(what), fault(f) {}
  Fault fault;
};

// Order of Forest::stats; mirrored by the ctypes wrapper.
enum StatsWord {
  kStatRows, kStatClasses, kStatTagged, kStatRowBytes, kStatNodeBytes, kStatBlockBytes,
  kStatMemberBytes, kStatWorkBytes, kStatNodes, kStatBlocks, kStatMembers, kStatsWords
};

class Forest {
 public:
  explicit Forest(Params params);

  void fit(uint64_t n, const float* x, const int64_t* y, const uint64_t* ids, uint32_t threads);
  void learn(uint64_t n, const float* x, const int64_t* y, const uint64_t* ids,
             ChangeStats& stats);
  void unlearn(uint64_t n, const uint64_t* ids, ChangeStats& stats);
  // out: n * classes frequencies, or n targets. Where a size is given it is what the caller made
  // room for; Fault::kChanged says that it does not fit any more.
  void predict(uint64_t n, const float* x, double* out, uint32_t classes, uint32_t threads);
  void contains(uint64_t n, const uint64_t* ids, uint8_t* out);
  void affected(uint64_t n, const uint64_t* ids, uint32_t* out) const;
  bool resolve(int64_t budget_ns, uint32_t threads);
  void purge();
  void export_rows(uint64_t n, uint64_t* ids, float* x, int64_t* y);
  void class_counts(uint32_t classes, int64_t* out);
  uint64_t canonical_size(const uint32_t* order, uint32_t living);
  void canonical_write(const uint32_t* order, uint32_t living, uint8_t* out, uint64_t size);
  std::string audit(int level);
  // Around a fork: no call is in progress between hold and release, or renew in the child.
  void hold() { lock_.lock(); }
  void release() { lock_.unlock(); }
  void renew() { lock_.renew(); }
  void stats(int64_t* out);  // kStatsWords numbers

 private:
  friend class Auditor;
  friend class CanonicalWriter;

  void check_rows(uint64_t n, const float* x, const int64_t* y, const uint64_t* ids,
                  bool fresh) const;
  void apply(const Vec<uint32_t>& slots, Modifier& modifier);
  void grow_trees(uint32_t threads);
  void rebuild(uint32_t threads);
  void resolve_all(uint32_t threads);
  void publish(const uint32_t* changed = nullptr, uint32_t count = 0);
  // Publishes at the end of a block, however it is left.
  struct Publish {
    Forest& forest;
    const uint32_t* changed = nullptr;
    uint32_t count = 0;
    ~Publish() { forest.publish(changed, count); }
  };
  bool predict_row(const float* x, double* out, uint32_t width,
                   std::vector<uint32_t>* tags) const;
  bool predict_rows(uint64_t n, const float* x, double* out, uint32_t width) const;
  bool predict_shared(uint64_t n, const float* x, double* out, uint32_t width, uint32_t threads,
                      std::vector<uint32_t>* tags) const;
  static void clear_way(Grower& grower, Tree& tree, const float* x);
  void clear_ways(uint64_t n, const float* x, const std::vector<uint32_t>& trees,
                  uint32_t threads);
  void require_usable() const;

  Params params_;
  uint32_t classes_;  // as seen from outside; inside there are at least two
  const Kernels& kernels_;
  RowStore rows_;
  std::vector<Tree> trees_;
  std::vector<uint32_t> filled_;   // trees with rows,
  std::vector<const Hot*> roots_;  // and their hot nodes
  std::vector<uint32_t> place_;    // of a tree in these two, or kNone
  std::vector<uint32_t> members_;  // trees of the rows of a change
  uint64_t version_ = 0;
  Workspace ws_;
  Grower grower_;
  Modifier deleter_, adder_;
  bool unusable_ = false;
  FairLock lock_;
};

}  // namespace privml::forest
