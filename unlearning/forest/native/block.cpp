#include "block.hpp"

namespace privml::forest {
namespace {

constexpr size_t kAlign = 64;

struct Offsets {
  size_t slots, skipped, thresholds, counts, classes, end;
};

size_t aligned(size_t n, size_t to) { return (n + to - 1) / to * to; }

Offsets offsets(const BlockShape& s) {
  const size_t count = s.wide ? 4 : 2;
  Offsets o;
  o.slots = aligned(sizeof(Block), 4);
  o.skipped = aligned(o.slots + s.slots * sizeof(Slot), 8);
  o.thresholds = aligned(o.skipped + s.words * 8, 32);
  o.counts = o.thresholds + size_t(s.numeric_lanes) * sizeof(float);
  o.classes = aligned(o.counts + s.lanes * count, 16);
  o.end = o.classes + size_t(s.lanes) * (s.sums ? 8 : count * s.channels);
  return o;
}

}  // namespace

size_t BlockShape::bytes() const { return aligned(offsets(*this).end, kAlign); }

Block* lay_out(void* at, const BlockShape& shape, uint64_t kappa) {
  const Offsets o = offsets(shape);
  Block* block = static_cast<Block*>(at);
  std::memset(at, 0, shape.bytes());
  block->kappa = kappa;
  block->bytes = uint32_t(shape.bytes());
  block->slots = shape.slots;
  block->numeric_lanes = shape.numeric_lanes;
  block->lanes = shape.lanes;
  block->channels = shape.channels;
  block->words = shape.words;
  block->slots_at = uint32_t(o.slots);
  block->skipped_at = uint32_t(o.skipped);
  block->thresholds_at = uint32_t(o.thresholds);
  block->counts_at = uint32_t(o.counts);
  block->classes_at = uint32_t(o.classes);
  block->wide = shape.wide;
  block->sums = shape.sums;
  return block;
}

Block* new_block(const BlockShape& shape, uint64_t kappa) {
  return lay_out(::operator new(shape.bytes(), std::align_val_t(kAlign)), shape, kappa);
}

Block* copy_block(const Block* from) {
  void* at = ::operator new(from->bytes, std::align_val_t(kAlign));
  std::memcpy(at, from, from->bytes);
  return static_cast<Block*>(at);
}

void delete_block(Block* block) {
  if (block == nullptr) return;
  scrub(block, block->bytes);
  ::operator delete(static_cast<void*>(block), std::align_val_t(kAlign));
}

}  // namespace privml::forest
