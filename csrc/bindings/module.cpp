// The one Python module of the core. Each room of the core has its own bind_*.cpp with one function.
#include <pybind11/pybind11.h>

#include "bindings.hpp"

PYBIND11_MODULE(_core, m) {
  m.doc() = "tgflow's native core: pointers, sizes and the caller's threads; see _core.pyi.";
  bind_log(m);
  bind_store(m);  // after the log, which it returns
  bind_sampling(m);
  bind_static_csr(m);
  bind_id_map(m);
  bind_plan(m);
  bind_tables(m);
  bind_belady(m);
  bind_attention(m);
  bind_gru(m);
  bind_cache(m);
  bind_threads(m);
}
