// Makes a kernel callable by name with its arguments behind pointers, as cuLaunchKernel takes them.
#pragma once

#include <tuple>
#include <utility>

#include "thread_block.hpp"

namespace emulator {

template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::decay_t<A>*>(arguments[I])...);
}

template <typename... A>
const char* launch(void (*kernel)(A...), unsigned grid, unsigned block, void** arguments, uint64_t order) {
  static std::string wrong;
  wrong = run(grid, block, order, [&] { call(kernel, arguments, std::index_sequence_for<A...>()); });
  return wrong.empty() ? nullptr : wrong.c_str();
}

/// The sizes of its arguments, ended by 0: what a caller passes must have them too.
template <typename... A>
const int64_t* sizes(void (*)(A...)) {
  static const int64_t bytes[] = {static_cast<int64_t>(sizeof(A))..., 0};
  return bytes;
}

}  // namespace emulator

#define EMULATED_KERNEL(name)                                                                             \
  extern "C" const char* launch_##name(unsigned grid, unsigned block, void** arguments, uint64_t order) { \
    return emulator::launch(name, grid, block, arguments, order);                                         \
  }                                                                                                       \
  extern "C" const int64_t* sizes_##name() { return emulator::sizes(name); }
