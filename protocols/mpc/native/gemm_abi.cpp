// C entry points of the ring product: argument checks, dispatch, and the split over threads.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "abi.hpp"
#include "gemm.hpp"

namespace privml {
namespace {

constexpr int64_t kMaxThreads = 256;
constexpr int64_t kWorkPerThread = int64_t(1) << 21;  // multiply-adds that repay a thread start

// A batch of products, each cut into `parts` along its longer side.
template <typename T>
struct Batch {
  Gemm<T> first;
  int64_t count, a_step, b_step, c_step, parts;
  bool by_rows;
};

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Piece number `task`: product task / parts, slice task % parts, cut at tile edges.
template <typename T>
Gemm<T> piece(const Batch<T>& batch, const GemmKernel<T>& kernel, int64_t task) {
  Gemm<T> g = batch.first;
  const int64_t item = task / batch.parts, part = task % batch.parts;
  g.a += item * batch.a_step;
  g.b += item * batch.b_step;
  g.c += item * batch.c_step;
  const int64_t tile = batch.by_rows ? kernel.rows : kernel.cols;
  const int64_t whole = batch.by_rows ? g.m : g.n;
  const int64_t width = ceil_div(ceil_div(whole, tile), batch.parts) * tile;
  const int64_t start = std::min(part * width, whole);
  const int64_t size = std::min(width, whole - start);
  if (batch.by_rows) {
    g.m = size;
    g.a += start * g.a_row;
    g.c += start * g.c_row;
  } else {
    g.n = size;
    g.b += start * g.b_col;
    g.c += start;
  }
  return g;
}

// Overwrite key-dependent words in a way the compiler must keep.
void wipe(void* space, size_t bytes) {
  std::memset(space, 0, bytes);
  __asm__ volatile("" : : "r"(space) : "memory");
}

template <typename T>
void work(const Batch<T>& batch, const GemmKernel<T>& kernel, std::atomic<int64_t>& next,
          std::atomic<int32_t>& code) {
  const Gemm<T> largest = piece(batch, kernel, 0);
  const size_t bytes = (kernel.scratch(largest.m, largest.k, largest.n) + 63) & ~size_t(63);
  void* space = bytes ? std::aligned_alloc(64, bytes) : nullptr;
  if (bytes && !space) {
    code = kNoMemory;
    return;
  }
  const int64_t tasks = batch.count * batch.parts;
  for (int64_t task = next++; task < tasks; task = next++) {
    const Gemm<T> g = piece(batch, kernel, task);
    if (g.m > 0 && g.n > 0) kernel.run(g, space);
  }
  if (bytes) wipe(space, bytes);
  std::free(space);
}

// Who computes a piece is decided at run time; what a piece is, and its bits, are not.
template <typename T>
int32_t run(const Batch<T>& batch, const GemmKernel<T>& kernel, int64_t threads) {
  std::atomic<int64_t> next{0};
  std::atomic<int32_t> code{kOk};
  std::thread pool[kMaxThreads];
  int64_t started = 0;
  try {
    for (; started < threads - 1; ++started)
      pool[started] = std::thread([&] { work(batch, kernel, next, code); });
  } catch (const std::exception&) {
    // No more threads to be had: the ones that run, or this one alone, do all the pieces.
  }
  work(batch, kernel, next, code);
  for (int64_t i = 0; i < started; ++i) pool[i].join();
  return code;
}

template <typename T>
int32_t dispatch(int32_t isa, Batch<T> batch, int64_t threads) {
  Gemm<T>& g = batch.first;
  if (batch.count < 0 || g.m < 0 || g.k < 0 || g.n < 0 || threads < 1) return kBadArgument;
  if (!isa_usable(isa)) return kUnsupported;
  if (!batch.count || !g.m || !g.n) return kOk;
  const GemmKernel<T> kernel = isa == kAvx512 ? gemm_avx512<T>()
                               : isa == kAvx2 ? gemm_avx2<T>()
                                              : gemm_scalar<T>();
  const double total = double(batch.count) * double(g.m) * double(g.k) * double(g.n);
  const double repaid = std::max(1.0, total / double(kWorkPerThread));
  threads = std::min({threads, kMaxThreads, int64_t(std::min(repaid, double(kMaxThreads)))});
  batch.parts = batch.count % threads ? threads : 1;
  batch.by_rows = g.m > g.n;
  return run(batch, kernel, threads);
}

}  // namespace
}  // namespace privml

#define PRIVML_GEMM(name, T)                                                                    \
  PRIVML_API int32_t name(int32_t isa, int64_t batch, int64_t m, int64_t k, int64_t n,           \
                          const T* a, int64_t a_batch, int64_t a_row, int64_t a_col, const T* b, \
                          int64_t b_batch, int64_t b_row, int64_t b_col, T* c, int64_t c_batch,  \
                          int64_t c_row, int32_t threads) {                                      \
    const privml::Gemm<T> first{m, k, n, a, a_row, a_col, b, b_row, b_col, c, c_row};            \
    return privml::dispatch<T>(isa, {first, batch, a_batch, b_batch, c_batch, 1, false},         \
                               threads);                                                         \
  }

PRIVML_GEMM(privml_gemm_u64, uint64_t)
PRIVML_GEMM(privml_gemm_u32, uint32_t)
