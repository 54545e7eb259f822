#pragma once

#include <cstdint>

#include "tensor_arg.hpp"
#include "tgflow/events.hpp"

/// Where tensors still cross as addresses; new bindings take a TensorArg.
using address_t = std::uintptr_t;

template <typename T>
T* at(address_t address) {
  return reinterpret_cast<T*>(address);
}

tgflow::Events events_at(address_t src, address_t dst, address_t t, address_t label, int64_t size);

void bind_log(py::module_& m);
void bind_sampling(py::module_& m);
void bind_store(py::module_& m);
void bind_static_csr(py::module_& m);
void bind_id_map(py::module_& m);
void bind_plan(py::module_& m);
void bind_tables(py::module_& m);
void bind_belady(py::module_& m);
void bind_attention(py::module_& m);
void bind_gru(py::module_& m);
void bind_cache(py::module_& m);
void bind_threads(py::module_& m);
