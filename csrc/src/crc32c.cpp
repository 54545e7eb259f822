#include "tgflow/crc32c.hpp"

#include <array>
#include <cstring>

namespace tgflow {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reversed

uint32_t by_table(uint32_t crc, const unsigned char* at, size_t bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t b = 0; b < 256; ++b) {
      made[b] = b;
      for (int bit = 0; bit < 8; ++bit) made[b] = made[b] >> 1 ^ (made[b] & 1 ? kPolynomial : 0);
    }
    return made;
  }();
  for (; bytes > 0; --bytes, ++at) crc = crc >> 8 ^ table[(crc ^ *at) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const unsigned char* at,
                                                          size_t bytes) {
  uint64_t wide = crc;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++at) crc = __builtin_ia32_crc32qi(crc, *at);
  return crc;
}
#endif

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(~crc, at, bytes);
#endif
  return ~by_table(~crc, at, bytes);
}

}  // namespace tgflow
