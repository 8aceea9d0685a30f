// Shared/exclusive lock that starves nobody: readers that arrive while a writer waits stay behind
// it, and those who waited for a writer go before the next one.
#pragma once

#include <condition_variable>
#include <mutex>
#include <new>

namespace privml::forest {

class FairLock {
 public:
  void lock() {
    std::unique_lock hold(mutex_);
    ++writers_waiting_;
    writers_.wait(hold, [this] { return !writing_ && readers_ == 0 && admitted_ == 0; });
    --writers_waiting_;
    writing_ = true;
  }

  void unlock() {
    std::lock_guard hold(mutex_);
    writing_ = false;
    admitted_ = readers_waiting_;
    readers_waiting_ = 0;
    ++turn_;
    if (admitted_ > 0) arrivals_.notify_all();
    else writers_.notify_one();
  }

  void lock_shared() {
    std::unique_lock hold(mutex_);
    if (writing_ || writers_waiting_ > 0) {
      ++readers_waiting_;
      arrivals_.wait(hold, [this, turn = turn_] { return turn_ != turn; });
      --admitted_;
    }
    ++readers_;
  }

  void unlock_shared() {
    std::lock_guard hold(mutex_);
    if (--readers_ == 0 && admitted_ == 0) writers_.notify_one();
  }

  // In a forked child whose only thread holds the lock: lets go of it and of all who waited. They
  // do not exist here, and may have been inside the mutex or the condition variables.
  void renew() { new (this) FairLock; }

 private:
  std::mutex mutex_;
  std::condition_variable writers_, arrivals_;
  int readers_ = 0, readers_waiting_ = 0, writers_waiting_ = 0;
  int admitted_ = 0;  // readers let in by the last writer and not yet awake
  bool writing_ = false;
  unsigned long turn_ = 0;  // writers that have finished
};

}  // namespace privml::forest
