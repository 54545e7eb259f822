#include "bindings.hpp"
#include "tgflow/thread_pool.hpp"

void bind_threads(py::module_& m) {
  m.def("set_num_threads", &tgflow::set_num_threads, py::arg("num_threads"));
  m.def("num_threads", &tgflow::num_threads);
}
