#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace py = pybind11;

/// A tensor's storage as it crosses the binding: its address. Python checks dtype, size and contiguity.
using address_t = std::uintptr_t;

template <typename T>
T* at(address_t address) {
  return reinterpret_cast<T*>(address);
}

void bind_threads(py::module_& m);
