// Shared declarations of the C ABI: export macro, return codes, instruction set levels.
// The Python side (privml/_native.py) mirrors the numbers; change both and the ABI version.
#pragma once

#include <cstdint>

#define PRIVML_API extern "C" __attribute__((visibility("default")))

namespace privml {

constexpr int32_t kAbiVersion = 4;

enum Code : int32_t { kOk = 0, kBadArgument = 1, kNoMemory = 2, kUnsupported = 3 };

enum Isa : int32_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

enum Feature : int32_t {
  kHasAvx2 = 1,
  kHasAvx512 = 2,  // F, DQ, BW and VL together
  kHasAesni = 4,
  kHasVaes256 = 8,
  kHasVaes512 = 16,
};

// Bit set of Feature that the processor has and the operating system saves on a task switch.
int32_t cpu_features();

// True when kernels of this level may run here.
bool isa_usable(int32_t isa);

}  // namespace privml
