// Static partition of independent work over short-lived threads; no pools, no global state.
#pragma once

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace privml::forest {

template <class Job>
void parallel(uint32_t count, uint32_t threads, const Job& job) {
  threads = std::max(1u, std::min(threads, count));
  if (threads == 1) {
    job(0u, count);
    return;
  }
  std::vector<std::exception_ptr> failures(threads);
  std::vector<std::thread> running;
  const auto share = [&](uint32_t i) {
    try {
      job(uint32_t(uint64_t(count) * i / threads), uint32_t(uint64_t(count) * (i + 1) / threads));
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  for (uint32_t i = 1; i < threads; ++i) {
    try {
      running.emplace_back(share, i);
    } catch (...) {  // no thread to be had: do its share here
      share(i);
    }
  }
  share(0);
  for (std::thread& thread : running) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace privml::forest
