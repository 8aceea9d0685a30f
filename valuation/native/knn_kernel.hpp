// Distances and sorting for one instruction set; included by the file of each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "knn.hpp"
#include "vec.hpp"

namespace privml::valuation {
namespace {

template <typename T>
struct Lanes;
template <>
struct Lanes<double> {
  typedef double Wide __attribute__((vector_size(PRIVML_VEC_BYTES)));
};
template <>
struct Lanes<float> {
  typedef float Wide __attribute__((vector_size(PRIVML_VEC_BYTES)));
};

// Squared distances of kTests rows to the 16 rows of a panel.
template <typename T, int kTests>
inline void panel_squares(const T* panel, int64_t d, const T* const* tests, T* const* out) {
  using Wide = typename Lanes<T>::Wide;
  constexpr int kWidth = PRIVML_VEC_BYTES / sizeof(T);
  constexpr int kParts = kPanel > kWidth ? int(kPanel) / kWidth : 1;
  Wide sum[kTests][kParts] = {};
  for (int64_t j = 0; j < d; ++j) {
    for (int part = 0; part < kParts; ++part) {
      Wide x;
      std::memcpy(&x, panel + j * kPanel + part * kWidth, sizeof x);
      for (int t = 0; t < kTests; ++t) {
        const Wide gap = x - tests[t][j];
        sum[t][part] += gap * gap;
      }
    }
  }
  for (int t = 0; t < kTests; ++t) std::memcpy(out[t], sum[t], sizeof sum[t]);
}

template <typename T>
struct Place {
  T square;
  int32_t row;
  bool operator<(const Place& other) const {
    return square != other.square ? square < other.square : row < other.row;
  }
};

inline uint32_t head_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint32_t(bits >> 32);
}
inline uint32_t head_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <typename T>
class Sorter {
 public:
  explicit Sorter(int64_t n) : n_(n), keys_(std::size_t(n)), spare_(std::size_t(n)) {}

  // Writes the `keep` nearest rows of distances, all of them sorted first.
  void whole(const T* squares, int64_t keep, int32_t* order, T* out) {
    for (int64_t row = 0; row < n_; ++row)
      keys_[std::size_t(row)] = uint64_t(head_of(squares[row])) << 32 | uint32_t(row);
    if (n_ < kFew) std::sort(keys_.begin(), keys_.end());
    else radix();
    if (sizeof(T) > 4) refine(squares);
    for (int64_t at = 0; at < keep; ++at) {
      order[at] = int32_t(uint32_t(keys_[std::size_t(at)]));
      if (out) out[at] = squares[order[at]];
    }
  }

  // The same for few rows: most distances are only compared with the worst one kept.
  void few(const T* squares, int64_t keep, int32_t* order, T* out) {
    const std::size_t room = std::size_t(2 * keep + kFew);
    std::vector<Place<T>>& best = places_;
    best.clear();
    best.reserve(room);
    bool full = false;
    T worst = 0;
    for (int64_t row = 0; row < n_; ++row) {
      if (full && !(squares[row] < worst)) continue;
      best.push_back({squares[row], int32_t(row)});
      if (best.size() < room) continue;
      std::nth_element(best.begin(), best.begin() + (keep - 1), best.end());
      best.resize(std::size_t(keep));
      worst = best.back().square;
      full = true;
    }
    std::sort(best.begin(), best.end());
    for (int64_t at = 0; at < keep; ++at) {
      order[at] = best[std::size_t(at)].row;
      if (out) out[at] = best[std::size_t(at)].square;
    }
  }

 private:
  static constexpr int64_t kFew = 256;
  static constexpr int kBits = 11, kPasses = 3, kBuckets = 1 << kBits;

  // Stable radix sort of the upper half of the keys; the lower half, the row, ascends already.
  void radix() {
    std::vector<uint32_t>& counts = counts_;
    counts.assign(std::size_t(kPasses) * kBuckets, 0);
    for (const uint64_t key : keys_)
      for (int pass = 0; pass < kPasses; ++pass) ++counts[bucket(key, pass)];
    for (int pass = 0; pass < kPasses; ++pass) {
      uint32_t* place = counts.data() + pass * kBuckets;
      uint32_t start = 0;
      for (int b = 0; b < kBuckets; ++b) {
        const uint32_t own = place[b];
        place[b] = start;
        start += own;
      }
      for (const uint64_t key : keys_) spare_[counts[bucket(key, pass)]++] = key;
      keys_.swap(spare_);
    }
  }

  static std::size_t bucket(uint64_t key, int pass) {
    return std::size_t(pass) * kBuckets + ((key >> (32 + kBits * pass)) & (kBuckets - 1));
  }

  // Puts rows whose distances share their upper half into the order of the whole distance.
  void refine(const T* squares) {
    const auto nearer = [squares](uint64_t a, uint64_t b) {
      const uint32_t left = uint32_t(a), right = uint32_t(b);
      return squares[left] != squares[right] ? squares[left] < squares[right] : left < right;
    };
    for (std::size_t start = 0; start < keys_.size();) {
      std::size_t stop = start + 1;
      while (stop < keys_.size() && keys_[stop] >> 32 == keys_[start] >> 32) ++stop;
      const auto from = keys_.begin() + std::ptrdiff_t(start);
      if (stop - start > 1) std::sort(from, keys_.begin() + std::ptrdiff_t(stop), nearer);
      start = stop;
    }
  }

  int64_t n_;
  std::vector<uint64_t> keys_, spare_;
  std::vector<uint32_t> counts_;
  std::vector<Place<T>> places_;
};

template <typename T>
class Searcher {
 public:
  explicit Searcher(const Search<T>& given)
      : s_(given), width_((given.n + kPanel - 1) / kPanel * kPanel),
        squares_(std::size_t(kTests * width_)), sorter_(given.n) {}

  void run() {
    int64_t test = 0;
    for (; test + kTests <= s_.m; test += kTests) step<kTests>(test);
    for (; test < s_.m; ++test) step<1>(test);
  }

 private:
  static constexpr int kTests = PRIVML_VEC_BYTES == 64 ? 4 : 2;
  static constexpr int64_t kShare = 8;  // below this share of all rows, do not sort them all

  template <int kCount>
  void step(int64_t first) {
    const T* tests[kCount];
    T* out[kCount];
    for (int t = 0; t < kCount; ++t) tests[t] = s_.tests + (first + t) * s_.d;
    for (int64_t row = 0; row < width_; row += kPanel) {
      for (int t = 0; t < kCount; ++t) out[t] = squares_.data() + t * width_ + row;
      panel_squares<T, kCount>(s_.panels + row * s_.d, s_.d, tests, out);
    }
    for (int t = 0; t < kCount; ++t) {
      const T* squares = squares_.data() + t * width_;
      int32_t* order = s_.order + (first + t) * s_.keep;
      T* kept = s_.squares ? s_.squares + (first + t) * s_.keep : nullptr;
      if (s_.keep * kShare <= s_.n) sorter_.few(squares, s_.keep, order, kept);
      else sorter_.whole(squares, s_.keep, order, kept);
    }
  }

  const Search<T>& s_;
  int64_t width_;
  std::vector<T> squares_;
  Sorter<T> sorter_;
};

}  // namespace
}  // namespace privml::valuation
