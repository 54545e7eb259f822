#pragma once

#include <memory>
#include <string>

#include "tgflow/block_reads.hpp"

namespace tgflow {

/// Reads by io_uring, with no library between us and the system calls. Null where the system has none.
std::unique_ptr<BlockReads> open_uring(const std::string& path, int flags, int depth);

}  // namespace tgflow
