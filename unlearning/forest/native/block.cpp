#include "block.hpp"

#include <algorithm>

namespace privml::forest {
namespace {

constexpr size_t kAlign = 64;

constexpr uint32_t kColumns = 7;
enum Column : uint32_t { kAttribute, kMn, kMx, kAtMn, kAtMx, kInside, kSimple };

struct Offsets {
  size_t info, pairs, thresholds, counts, classes, end;
};

size_t aligned(size_t n, size_t to) { return (n + to - 1) / to * to; }

Offsets offsets(const BlockShape& s) {
  Offsets o;
  o.info = sizeof(Block) + size_t(kColumns) * round_up(s.slots, kSlots) * 4;
  o.pairs = aligned(o.info + s.slots * sizeof(SlotInfo), 8);
  o.thresholds = aligned(o.pairs + ((s.slots + 63) / 64 + s.words) * 8, 16);
  o.counts = o.thresholds + size_t(s.numeric_lanes) * sizeof(float);
  o.classes = aligned(o.counts + size_t(s.lanes) * s.width, 8);
  o.end = o.classes + size_t(s.lanes) * (s.sums ? 8 : s.width * s.channels);
  return o;
}

}  // namespace

size_t BlockShape::bytes() const { return aligned(offsets(*this).end, kAlign); }

void Block::set_kind(uint32_t q, SlotKind kind) {
  info()[q].kind = kind;
  column(kInside)[q] = kind == kNumeric ? ~0u : 0;
  column(kSimple)[q] = kind == kCategorical ? 0 : ~0u;
  const uint64_t bit = uint64_t(1) << (q % 64);
  if (kind == kTwoValued) pairs()[q / 64] |= bit;
  else pairs()[q / 64] &= ~bit;
}

SlotColumns Block::columns(uint32_t first) {
  return {column(kAttribute) + first, column(kMn) + first,     column(kMx) + first,
          column(kAtMn) + first,      column(kAtMx) + first,   column(kInside) + first,
          column(kSimple) + first,    info() + first,          std::min(slots - first, 64u),
          pairs()[first / 64]};
}

Block* lay_out(void* at, const BlockShape& shape, uint64_t kappa) {
  const Offsets o = offsets(shape);
  Block* block = static_cast<Block*>(at);
  std::memset(at, 0, shape.bytes());
  block->kappa = kappa;
  block->bytes = uint32_t(shape.bytes());
  block->slots = shape.slots;
  block->padded = round_up(shape.slots, kSlots);
  block->numeric_lanes = shape.numeric_lanes;
  block->lanes = shape.lanes;
  block->channels = shape.channels;
  block->words = shape.words;
  block->info_at = uint32_t(o.info);
  block->pairs_at = uint32_t(o.pairs);
  block->thresholds_at = uint32_t(o.thresholds);
  block->counts_at = uint32_t(o.counts);
  block->classes_at = uint32_t(o.classes);
  block->width = uint8_t(shape.width);
  block->sums = shape.sums;
  return block;
}

Block* new_block(const BlockShape& shape, uint64_t kappa) {
  return lay_out(::operator new(shape.bytes(), std::align_val_t(kAlign)), shape, kappa);
}

void delete_block(Block* block) {
  if (block == nullptr) return;
  scrub(block, block->bytes);
  ::operator delete(static_cast<void*>(block), std::align_val_t(kAlign));
}

}  // namespace privml::forest
