// Shared/exclusive lock that prefers writers: a stream of predictions cannot starve a deletion.
#pragma once

#include <condition_variable>
#include <mutex>

namespace privml::forest {

class PreferWriterLock {
 public:
  void lock() {
    std::unique_lock hold(mutex_);
    ++waiting_;
    writers_.wait(hold, [this] { return !writing_ && readers_ == 0; });
    --waiting_;
    writing_ = true;
  }

  void unlock() {
    std::lock_guard hold(mutex_);
    writing_ = false;
    if (waiting_ > 0) writers_.notify_one();
    else arrivals_.notify_all();
  }

  void lock_shared() {
    std::unique_lock hold(mutex_);
    arrivals_.wait(hold, [this] { return !writing_ && waiting_ == 0; });
    ++readers_;
  }

  void unlock_shared() {
    std::lock_guard hold(mutex_);
    if (--readers_ == 0 && waiting_ > 0) writers_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable writers_, arrivals_;
  int readers_ = 0, waiting_ = 0;
  bool writing_ = false;
};

}  // namespace privml::forest
