#include "bindings.hpp"
#include "tgflow/simd_level.hpp"
#include "tgflow/thread_pool.hpp"

namespace bindings::threads {

std::vector<std::string> simd_levels() {
  std::vector<std::string> names;
  for (const tgflow::SimdLevel level : tgflow::simd_levels()) names.push_back(name_of(level));
  return names;
}

std::string simd_level() { return name_of(tgflow::simd_level()); }

}  // namespace bindings::threads

/// Binds the thread count and the vector level of the core's loops.
void bind_threads(py::module_& m) {
  using namespace bindings::threads;
  m.def("set_num_threads", &tgflow::set_num_threads, "num_threads"_a);
  m.def("num_threads", &tgflow::num_threads);
  m.def("simd_levels", &simd_levels);
  m.def("simd_level", &simd_level);
  m.def("set_simd_level", &tgflow::set_simd_level, "level"_a);
}
