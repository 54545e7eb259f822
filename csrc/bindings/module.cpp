// The one Python module of the core. Each bind_*.cpp has one function.

#include "bindings.hpp"

PYBIND11_MODULE(_core, m) {
  m.doc() = "tgflow's native core.";
  bind_graph(m);
  bind_id_map(m);
  bind_plan(m);
  bind_event_counts(m);
  bind_preparer(m);  // after the types of its arguments
  bind_metrics(m);
  bind_tables(m);
  bind_layers(m);
  bind_cache(m);
  bind_threads(m);
}
