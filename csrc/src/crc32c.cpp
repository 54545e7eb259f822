#include "tgflow/crc32c.hpp"

#include <array>
#include <cstring>

namespace tgflow {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reversed
constexpr size_t kWord = 8;

using Tables = std::array<std::array<uint32_t, 256>, kWord>;

/// tables[k][b]: what byte `b` followed by `k` zero bytes adds ("slicing by 8").
Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < kWord; ++k) {
    for (size_t b = 0; b < 256; ++b) {
      tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xff];
    }
  }
  return tables;
}

uint32_t by_table(uint32_t crc, const unsigned char* at, size_t bytes) {
  static const Tables tables = make_tables();
  for (; bytes >= kWord; bytes -= kWord, at += kWord) {
    uint32_t next = 0;
    for (size_t k = 0; k < kWord; ++k) {
      const uint32_t byte = k < 4 ? (crc >> 8 * k ^ at[k]) & 0xff : at[k];
      next ^= tables[kWord - 1 - k][byte];
    }
    crc = next;
  }
  for (; bytes > 0; --bytes, ++at) crc = crc >> 8 ^ tables[0][(crc ^ *at) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(uint32_t crc, const unsigned char* at,
                                                          size_t bytes) {
  uint64_t wide = crc;
  for (; bytes >= kWord; bytes -= kWord, at += kWord) {
    uint64_t word;
    std::memcpy(&word, at, kWord);
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
