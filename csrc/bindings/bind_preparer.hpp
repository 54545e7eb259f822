#pragma once

#include "tensor_arg.hpp"

void bind_preparer(py::module_& m);
