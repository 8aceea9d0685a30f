#include "block.hpp"

namespace privml::forest {
namespace {

constexpr size_t kAlign = 64;

struct Offsets {
  size_t thresholds, counts, classes, end;
};

size_t aligned(size_t n, size_t to) { return (n + to - 1) / to * to; }

Offsets offsets(const BlockShape& s) {
  Offsets o;
  o.thresholds = aligned(Block::pairs_at(s.slots) + ((s.slots + 63) / 64 + s.words) * 8, 16);
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

Block* lay_out(void* at, const BlockShape& shape, uint64_t kappa) {
  const Offsets o = offsets(shape);
  Block* block = static_cast<Block*>(at);
  std::memset(at, 0, shape.bytes());
  block->kappa = kappa;
  block->bytes = uint32_t(shape.bytes());
  block->slots = shape.slots;
  block->numeric_lanes = shape.numeric_lanes;
  block->lanes = shape.lanes;
  block->pair_lane = shape.pair_lane;
  block->channels = uint16_t(shape.channels);
  block->words = uint16_t(shape.words);
  block->thresholds_at = uint32_t(o.thresholds);
  block->counts_at = uint32_t(o.counts);
  block->classes_at = uint32_t(o.classes);
  block->width = uint8_t(shape.width);
  block->sums = shape.sums;
  block->best_slot = block->best_lane = kNone;
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
