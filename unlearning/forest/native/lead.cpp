// For how long a decision is certain to stand, so that most changes need not score all candidates.
//
// One row moves the half weighted Gini S = (n - V) / 2 of every candidate by an amount in [0, 1),
// in the same direction for all of them: a candidate that leads another by g stays ahead while
// floor(g) rows come or go. So each slot has a term, up to which none of its candidates can
// overtake the chosen one; only slots whose term is over are scored again.
//
// Candidates of one numeric slot with equal left counts cut alike ("twins"), and stay alike while
// rows only leave; of twins the first is chosen, so those behind it are no rivals. The leads come
// from screened scores of two classes; a margin of 4e-6 of the score covers their rounding and that
// of V in float64. Anything closer is decided by exact scores.
#include "grower.hpp"

namespace privml::forest {
namespace {

bool usable(const Params& params, const Kernels& kernels, const Block* block,
            const NodeTotals& t) {
  return params.binary() && kernels.screens && t.n <= kScreenRows && block->best_slot != kNone;
}

bool ask(const Kernels& kernels, Block* block, const NodeTotals& t) {
  const SlotInfo& chosen = block->info()[block->best_slot];
  const Lead lead{block->info(),   block->terms(),    &block->pair_term, block->slots,
                  block->lanes,    block->pair_lane,  t.n,               t.ones,
                  block->best_slot, block->best_lane, block->now,
                  chosen.kind == kNumeric && chosen.missing == 0};
  return with_counter(block, [&](auto zero) {
    using Count = decltype(zero);
    return counting<Count>(kernels).stands(lead, block->left<Count>(), block->by_class<Count>());
  });
}

}  // namespace

void note_choice(const Params& params, const Kernels& kernels, Block* block,
                 const NodeTotals& totals, const Best& best) {
  block->best_slot = best.slot;
  block->best_lane = best.lane;
  block->now = 1;
  block->pair_term = 0;
  // Two-valued slots look at pair_term instead of their own.
  for (uint32_t q = 0; q < block->slots; ++q)
    block->terms()[q] = block->info()[q].kind == kTwoValued ? kNone : 0;
  if (block->lanes > kFewLanes && usable(params, kernels, block, totals))
    ask(kernels, block, totals);
}

bool choice_stands(const Params& params, const Kernels& kernels, Block* block,
                   const NodeTotals& totals, uint32_t count, bool adding) {
  if (!usable(params, kernels, block, totals) || block->now > 1u << 30) return false;
  const uint32_t left = block->left_of(block->best_lane);
  if (left == 0 || left >= totals.n) return false;
  block->now += count;
  // An added row may tell twins apart: look at their slot as it is now.
  if (adding && block->info()[block->best_slot].kind == kNumeric)
    block->terms()[block->best_slot] = 0;
  return ask(kernels, block, totals);
}

}  // namespace privml::forest
