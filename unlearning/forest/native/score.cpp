// Scores of candidates: exact integers, then float64 in the order the format fixes.
#include "grower.hpp"

namespace privml::forest {
namespace {

double gini_score(uint64_t left_squares, uint32_t left, uint64_t right_squares, uint32_t right) {
  return double(left_squares) / double(left) + double(right_squares) / double(right);
}

double binary_score(uint64_t n, uint64_t ones, uint64_t left, uint64_t left_ones) {
  const uint64_t right = n - left, right_ones = ones - left_ones;
  const uint64_t left_rest = left - left_ones, right_rest = right - right_ones;
  return gini_score(left_ones * left_ones + left_rest * left_rest, uint32_t(left),
                    right_ones * right_ones + right_rest * right_rest, uint32_t(right));
}

template <class Count>
double multi_score(const NodeTotals& t, uint32_t left, const Count* by_class, uint32_t stride,
                   uint32_t channels) {
  uint64_t left_squares = 0, right_squares = 0;
  uint64_t first = left;
  for (uint32_t c = 0; c < channels; ++c) {
    const uint64_t a = by_class[size_t(c) * stride], b = t.counts[c + 1] - a;
    left_squares += a * a;
    right_squares += b * b;
    first -= a;
  }
  const uint64_t rest = t.counts[0] - first;
  return gini_score(left_squares + first * first, left, right_squares + rest * rest, t.n - left);
}

double sum_score(const NodeTotals& t, uint32_t left, int64_t left_sum) {
  const __int128 d = __int128(t.n) * left_sum - __int128(left) * t.moments->sum;
  const double gap = double(d);
  return (gap * gap) / (double(left) * double(t.n - left));
}

// Walks candidate lanes in increasing order and keeps the best with its tie rule.
class Chooser {
 public:
  Chooser(const Params& params, Block* block) : params_(params), block_(block) {}

  // True if this lane must be scored: not if it cuts exactly like the best one of its own slot.
  bool enter(uint32_t lane, uint32_t left) {
    const SlotInfo* slots = block_->info();
    while (lane - slots[slot_].lane >= slots[slot_].lanes)
      slot_ = slot_ + 1 < block_->slots ? slot_ + 1 : 0;
    const SlotInfo& slot = slots[slot_];
    const uint32_t at = lane - slot.lane;
    if (at >= slot.used) return false;
    candidate_ = slot.kind == kCategorical && at >= params_.thresholds ? slot.extra : at;
    left_ = left;
    lane_ = lane;
    return !(slot_ == best.slot && left == best_left_ && slot.kind == kNumeric &&
             slot.missing == 0);
  }

  void offer(double score) {
    const bool better =
        best.slot == kNone || score > best.score ||
        (score == best.score &&
         (slot_ < best.slot || (slot_ == best.slot && candidate_ < best.candidate)));
    if (!better) return;
    best = {slot_, lane_, candidate_, score};
    best_left_ = left_;
  }

  Best best;

 private:
  const Params& params_;
  Block* block_;
  uint32_t slot_ = 0, candidate_ = 0, left_ = 0, lane_ = 0, best_left_ = kNone;
};

template <class Count>
Best best_by_class(const Params& params, const Kernels& kernels, Block* block,
                   const NodeTotals& t, Workspace& ws) {
  const CountKernels<Count>& k = counting<Count>(kernels);
  const Count* left = block->left<Count>();
  const Count* by_class = block->by_class<Count>();
  const uint32_t lanes = block->lanes;
  const bool binary = params.binary();
  const uint32_t found =
      binary ? k.screen_binary(left, by_class, lanes, t.n, t.ones, ws.scores.data(),
                               ws.lanes.data())
             : k.screen_multi(left, by_class, lanes, t.n, t.counts, block->channels,
                              ws.scores.data(), ws.lanes.data());
  Chooser chooser(params, block);
  for (uint32_t i = 0; i < found; ++i) {
    const uint32_t lane = ws.lanes[i];
    if (!chooser.enter(lane, left[lane])) continue;
    chooser.offer(binary ? binary_score(t.n, t.ones, left[lane], by_class[lane])
                         : multi_score(t, left[lane], by_class + lane, lanes, block->channels));
  }
  return chooser.best;
}

Best best_by_sum(const Params& params, Block* block, const NodeTotals& t) {
  const uint32_t* left = block->left<uint32_t>();
  const int64_t* sums = block->left_sums();
  Chooser chooser(params, block);
  for (uint32_t lane = 0; lane < block->lanes; ++lane) {
    if (left[lane] == 0 || left[lane] >= t.n) continue;
    if (chooser.enter(lane, left[lane])) chooser.offer(sum_score(t, left[lane], sums[lane]));
  }
  return chooser.best;
}

}  // namespace

Best best_of_exact(const Params& params, Block* block, const NodeTotals& t, uint32_t from,
                   uint32_t to, uint32_t without_left, uint32_t without_lane) {
  Chooser chooser(params, block);
  for (uint32_t lane = from; lane < to; ++lane) {
    const uint32_t left = block->left_of(lane);
    if (left == 0 || left >= t.n || lane == without_lane) continue;
    if (left == without_left && lane > without_lane) continue;
    if (!chooser.enter(lane, left)) continue;
    if (block->sums) {
      chooser.offer(sum_score(t, left, block->left_sums()[lane]));
    } else if (params.binary()) {
      chooser.offer(binary_score(t.n, t.ones, left, block->class_of(0, lane)));
    } else {
      chooser.offer(with_counter(block, [&](auto zero) {
        return multi_score(t, left, block->by_class<decltype(zero)>() + lane, block->lanes,
                           block->channels);
      }));
    }
  }
  return chooser.best;
}

Best best_candidate(const Params& params, const Kernels& kernels, Block* block,
                    const NodeTotals& totals, Workspace& ws) {
  if (block->lanes == 0) return Best();
  if (ws.lanes.size() < block->lanes) {
    ws.lanes.resize(block->lanes);
    ws.scores.resize(block->lanes);
  }
  if (params.regression()) return best_by_sum(params, block, totals);
  return with_counter(block, [&](auto zero) {
    return best_by_class<decltype(zero)>(params, kernels, block, totals, ws);
  });
}

}  // namespace privml::forest
