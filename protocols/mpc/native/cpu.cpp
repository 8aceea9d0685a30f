// Processor and operating system checks behind the run-time dispatch.
#include "abi.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace privml {
namespace {

#if defined(__x86_64__)
bool bit(uint32_t word, int index) { return (word >> index) & 1u; }

// Register state the operating system saves (XCR0); call only when OSXSAVE is set.
uint64_t xcr0() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t(high) << 32) | low;
}

int32_t detect() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const bool aes = bit(c, 25) && bit(c, 19);
  int32_t found = aes ? kHasAesni : 0;
  if (!bit(c, 27) || !bit(c, 28)) return found;
  const uint64_t state = xcr0();
  const bool ymm = (state & 0x06) == 0x06;
  const bool zmm = (state & 0xe6) == 0xe6;
  if (!ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  const bool avx2 = bit(b, 5);
  const bool avx512 = zmm && avx2 && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  const bool vaes = aes && bit(c, 9);
  if (avx2) found |= kHasAvx2;
  if (avx512) found |= kHasAvx512;
  if (vaes && avx2) found |= kHasVaes256;
  if (vaes && avx512) found |= kHasVaes512;
  return found;
}
#else
int32_t detect() { return 0; }
#endif

}  // namespace

int32_t cpu_features() {
  static const int32_t found = detect();
  return found;
}

bool isa_usable(int32_t isa) {
  if (isa == kScalar) return true;
  if (isa == kAvx2) return cpu_features() & kHasAvx2;
  return isa == kAvx512 && (cpu_features() & kHasAvx512);
}

}  // namespace privml

PRIVML_API int32_t privml_abi_version() { return privml::kAbiVersion; }

PRIVML_API int32_t privml_cpu_features() { return privml::cpu_features(); }
