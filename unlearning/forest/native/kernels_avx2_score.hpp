// Second half of kernels_avx2.cpp: screened scores, and sums for regression.
#pragma once

namespace privml::forest {
namespace {

__m256i widen(const uint8_t* at) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
}

__m256i widen(const uint16_t* at) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

__m256i widen(const uint32_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

template <class Count>
uint32_t all_admissible(const Count* left, uint32_t lanes, uint32_t n, uint32_t* out) {
  uint32_t found = 0;
  for (uint32_t j = 0; j < lanes; ++j)
    if (left[j] > 0 && left[j] < n) out[found++] = j;
  return found;
}

// Lanes whose screened score reaches the limit, in order.
uint32_t lanes_above(const float* scores, uint32_t lanes, float limit, uint32_t* out) {
  uint32_t found = 0;
  const __m256 bound = _mm256_set1_ps(limit);
  for (uint32_t j = 0; j < lanes; j += kLane) {
    unsigned hits = unsigned(_mm256_movemask_ps(_mm256_cmp_ps(load(scores + j), bound,
                                                              _CMP_GE_OQ)));
    for (; hits; hits &= hits - 1) out[found++] = j + uint32_t(__builtin_ctz(hits));
  }
  return found;
}

// A function: a global would be set up by vector code on processors that have none.
__m256 refused() { return _mm256_set1_ps(-1.0f); }

// For two classes V = const + (2/n) D with D = (n a - N l)^2 / (l r). The integers are exact, the
// float32 rounding of D stays below 4e-7 of it, and float64 rounding of V moves D by less than
// 1e-15 n^2.
template <class Count>
__m256 score_binary(const Count* left, const Count* ones, __m256i all, __m256i positives) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i l = widen(left), a = widen(ones), r = _mm256_sub_epi32(all, l);
  const __m256i ok = _mm256_and_si256(_mm256_cmpgt_epi32(l, zero), _mm256_cmpgt_epi32(r, zero));
  const __m256 d = _mm256_cvtepi32_ps(
      _mm256_sub_epi32(_mm256_mullo_epi32(a, all), _mm256_mullo_epi32(l, positives)));
  const __m256 bottom = _mm256_mul_ps(_mm256_cvtepi32_ps(l), _mm256_cvtepi32_ps(r));
  return _mm256_blendv_ps(refused(), _mm256_div_ps(_mm256_mul_ps(d, d), bottom),
                          _mm256_castsi256_ps(ok));
}

template <class Count>
uint32_t screen_binary(const Count* left, const Count* ones, uint32_t lanes, uint32_t n,
                       uint32_t n_ones, float* scores, uint32_t* out) {
  if (n > kScreenRows) return all_admissible(left, lanes, n, out);
  const __m256i all = _mm256_set1_epi32(int(n)), positives = _mm256_set1_epi32(int(n_ones));
  __m256 best = refused();
  for (uint32_t j = 0; j < lanes; j += kLane) {
    const __m256 score = score_binary(left + j, ones + j, all, positives);
    _mm256_storeu_ps(scores + j, score);
    best = _mm256_max_ps(best, score);
  }
  const float top = max_lanes(best);
  if (top < 0) return 0;
  const float rows = float(n);
  return lanes_above(scores, lanes, top - top * 2e-6f - rows * rows * 4e-15f, out);
}

// V itself, whose float32 rounding stays below 4e-7 of it.
template <class Count>
__m256 score_multi(const Count* left, const Count* by_class, uint32_t stride, __m256i all,
                   const uint32_t* totals, uint32_t channels) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i l = widen(left), r = _mm256_sub_epi32(all, l);
  const __m256i ok = _mm256_and_si256(_mm256_cmpgt_epi32(l, zero), _mm256_cmpgt_epi32(r, zero));
  __m256i first = l, in_left = zero, in_right = zero;
  for (uint32_t c = 0; c < channels; ++c) {
    const __m256i a = widen(by_class + size_t(c) * stride);
    const __m256i b = _mm256_sub_epi32(_mm256_set1_epi32(int(totals[c + 1])), a);
    first = _mm256_sub_epi32(first, a);
    in_left = _mm256_add_epi32(in_left, _mm256_mullo_epi32(a, a));
    in_right = _mm256_add_epi32(in_right, _mm256_mullo_epi32(b, b));
  }
  const __m256i rest = _mm256_sub_epi32(_mm256_set1_epi32(int(totals[0])), first);
  in_left = _mm256_add_epi32(in_left, _mm256_mullo_epi32(first, first));
  in_right = _mm256_add_epi32(in_right, _mm256_mullo_epi32(rest, rest));
  const __m256 value =
      _mm256_add_ps(_mm256_div_ps(_mm256_cvtepi32_ps(in_left), _mm256_cvtepi32_ps(l)),
                    _mm256_div_ps(_mm256_cvtepi32_ps(in_right), _mm256_cvtepi32_ps(r)));
  return _mm256_blendv_ps(refused(), value, _mm256_castsi256_ps(ok));
}

template <class Count>
uint32_t screen_multi(const Count* left, const Count* by_class, uint32_t lanes, uint32_t n,
                      const uint32_t* totals, uint32_t channels, float* scores, uint32_t* out) {
  if (n > kScreenRows) return all_admissible(left, lanes, n, out);
  const __m256i all = _mm256_set1_epi32(int(n));
  __m256 best = refused();
  for (uint32_t j = 0; j < lanes; j += kLane) {
    const __m256 score = score_multi(left + j, by_class + j, lanes, all, totals, channels);
    _mm256_storeu_ps(scores + j, score);
    best = _mm256_max_ps(best, score);
  }
  const float top = max_lanes(best);
  return top < 0 ? 0 : lanes_above(scores, lanes, top - top * 2e-6f, out);
}

float chosen_score(const Lead& lead, uint32_t left, uint32_t ones) {
  const int32_t d = int32_t(ones * lead.n) - int32_t(left * lead.n_ones);
  return float(d) * float(d) / (float(left) * float(lead.n - left));
}

// Of lanes first.. those in `hits` that are neither the chosen one nor a twin behind it.
template <class Count>
unsigned rivals(const Lead& lead, const Count* left, uint32_t first, unsigned hits) {
  const SlotInfo& slot = lead.info[lead.best_slot];
  unsigned rest = hits;
  for (unsigned bits = hits; bits; bits &= bits - 1) {
    const uint32_t lane = first + uint32_t(__builtin_ctz(bits));
    const bool twin = lead.nested && lane > lead.best_lane && lane < slot.lane + slot.lanes &&
                      left[lane] == left[lead.best_lane];
    if (twin || lane == lead.best_lane) rest &= ~(bits & -bits);
  }
  return rest;
}

// Best score of the lanes of one slot, or of all two-valued ones.
template <class Count>
float best_of(const Lead& lead, const Count* left, const Count* ones, uint32_t from, uint32_t to) {
  const __m256i all = _mm256_set1_epi32(int(lead.n));
  const __m256i positives = _mm256_set1_epi32(int(lead.n_ones));
  __m256 best = refused();
  for (uint32_t j = from; j < to; j += kLane)
    best = _mm256_max_ps(best, score_binary(left + j, ones + j, all, positives));
  return max_lanes(best);
}

// The same without the chosen candidate and its twins.
template <class Count>
float best_other(const Lead& lead, const Count* left, const Count* ones, uint32_t from,
                 uint32_t to) {
  const __m256i all = _mm256_set1_epi32(int(lead.n));
  const __m256i positives = _mm256_set1_epi32(int(lead.n_ones));
  const __m256i chosen = _mm256_set1_epi32(int(lead.best_lane));
  const __m256i alike = _mm256_set1_epi32(lead.nested ? int(left[lead.best_lane]) : -1);
  __m256i index = _mm256_add_epi32(_mm256_set1_epi32(int(from)),
                                   _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256 best = refused();
  for (uint32_t j = from; j < to; j += kLane) {
    const __m256i twin = _mm256_and_si256(_mm256_cmpeq_epi32(widen(left + j), alike),
                                          _mm256_cmpgt_epi32(index, chosen));
    const __m256i out = _mm256_or_si256(twin, _mm256_cmpeq_epi32(index, chosen));
    const __m256 score = score_binary(left + j, ones + j, all, positives);
    best = _mm256_max_ps(best, _mm256_blendv_ps(score, refused(), _mm256_castsi256_ps(out)));
    index = _mm256_add_epi32(index, _mm256_set1_epi32(kLane));
  }
  return max_lanes(best);
}

// All candidates at once: none but the chosen one and its twins may come near its score.
template <class Count>
bool leads_all(const Lead& lead, const Count* left, const Count* ones) {
  const __m256i all = _mm256_set1_epi32(int(lead.n));
  const __m256i positives = _mm256_set1_epi32(int(lead.n_ones));
  const float top = chosen_score(lead, left[lead.best_lane], ones[lead.best_lane]);
  const float rows = float(lead.n);
  const __m256 limit = _mm256_set1_ps(top - top * 4e-6f - rows * rows * 4e-15f);
  for (uint32_t j = 0; j < lead.lanes; j += kLane) {
    const __m256 score = score_binary(left + j, ones + j, all, positives);
    const unsigned hits = unsigned(_mm256_movemask_ps(_mm256_cmp_ps(score, limit, _CMP_GE_OQ)));
    if (hits && rivals(lead, left, j, hits)) return false;
  }
  return true;
}

template <class Count>
bool stands(const Lead& lead, const Count* left, const Count* ones) {
  if (lead.lanes <= kFewLanes) return leads_all(lead, left, ones);
  const float top = chosen_score(lead, left[lead.best_lane], ones[lead.best_lane]);
  const float unit = 1.0f / float(lead.n), margin = 4e-6f * top * unit + 1e-3f;
  bool certain = true;
  const auto renew = [&](uint32_t& term, float other) {
    const float ahead = (top - other) * unit - margin;
    if (ahead < 0) certain = false;
    else term = lead.now + uint32_t(ahead < 1e9f ? ahead : 1e9f);
  };
  for (uint32_t q = 0; q < lead.slots && certain; ++q) {
    if (lead.terms[q] >= lead.now) continue;
    const SlotInfo& slot = lead.info[q];
    const uint32_t end = slot.lane + slot.lanes;
    renew(lead.terms[q], q == lead.best_slot ? best_other(lead, left, ones, slot.lane, end)
                                             : best_of(lead, left, ones, slot.lane, end));
  }
  if (certain && *lead.pair_term < lead.now) {
    const bool among = lead.info[lead.best_slot].kind == kTwoValued;
    renew(*lead.pair_term, among ? best_other(lead, left, ones, lead.pair_lane, lead.lanes)
                                 : best_of(lead, left, ones, lead.pair_lane, lead.lanes));
  }
  return certain;
}

// Masks of four 64-bit lanes each from one of eight 32-bit lanes.
__m256i low_half(__m256i mask) { return _mm256_cvtepi32_epi64(_mm256_castsi256_si128(mask)); }
__m256i high_half(__m256i mask) { return _mm256_cvtepi32_epi64(_mm256_extracti128_si256(mask, 1)); }

void count_sums(const float* x, const int64_t* y, uint32_t n, const float* w, uint32_t lanes,
                uint32_t* left, int64_t* sums) {
  for (uint32_t j = 0; j < lanes; j += kLane) {
    const __m256 limit = load(w + j);
    __m256i rows = _mm256_setzero_si256(), low = rows, high = rows;
    for (uint32_t i = 0; i < n; ++i) {
      const __m256i mask =
          _mm256_castps_si256(_mm256_cmp_ps(_mm256_broadcast_ss(x + i), limit, _CMP_LE_OQ));
      const __m256i target = _mm256_set1_epi64x(y[i]);
      rows = _mm256_sub_epi32(rows, mask);
      low = _mm256_add_epi64(low, _mm256_and_si256(low_half(mask), target));
      high = _mm256_add_epi64(high, _mm256_and_si256(high_half(mask), target));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(left + j), rows);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + j), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + j + 4), high);
  }
}

void update_sums(const float* w, uint32_t lanes, float x, int32_t step, int64_t y, uint32_t* left,
                 int64_t* sums) {
  const __m256 value = _mm256_set1_ps(x);
  const __m256i flip = _mm256_set1_epi32(step > 0 ? -1 : 0);
  const __m256i target = _mm256_set1_epi64x(step * y);
  for (uint32_t j = 0; j < lanes; j += kLane) {
    const __m256i mask = below(w + j, value);
    add_mask(left + j, mask, flip);
    __m256i* to = reinterpret_cast<__m256i*>(sums + j);
    _mm256_storeu_si256(
        to, _mm256_add_epi64(_mm256_loadu_si256(to), _mm256_and_si256(low_half(mask), target)));
    _mm256_storeu_si256(to + 1, _mm256_add_epi64(_mm256_loadu_si256(to + 1),
                                                 _mm256_and_si256(high_half(mask), target)));
  }
}

template <class Count>
CountKernels<Count> counts() {
  return {count<Count>,         update_lanes,  update_slots<Count>,
          screen_binary<Count>, stands<Count>, screen_multi<Count>};
}

}  // namespace

const Kernels& kernels_avx2() {
  static const Kernels kernels{
      true,
      range,
      mask_le,
      mask_bit,
      thresholds,
      find,
      count_sums,
      update_sums,
      counts<uint8_t>(),
      counts<uint16_t>(),
      counts<uint32_t>()};
  return kernels;
}

}  // namespace privml::forest
