// Each bind_*.cpp has its helpers in its own namespace: several files are compiled as one.
#pragma once

#include "tensor_arg.hpp"

void bind_graph(py::module_& m);
void bind_layers(py::module_& m);
void bind_id_map(py::module_& m);
void bind_plan(py::module_& m);
void bind_preparer(py::module_& m);
void bind_event_counts(py::module_& m);
void bind_metrics(py::module_& m);
void bind_tables(py::module_& m);
void bind_cache(py::module_& m);
void bind_threads(py::module_& m);
