// CRC-32C (Castagnoli), the checksum of iSCSI and ext4: by the processor's own instruction where it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tgflow {

/// Continues `crc`, 0 at first, over `bytes` bytes.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

}  // namespace tgflow
