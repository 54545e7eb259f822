#include "tensor_arg.hpp"

#include <pybind11/gil_safe_call_once.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace {

using dlpack::DataType;
using dlpack::ExchangeApi;

/// Access to torch's tensor metadata.
struct TorchApi {
  py::object tensor_type;
  const ExchangeApi* exchange;
};

TorchApi find_torch() {
  const py::object tensor_type = py::module_::import("torch").attr("Tensor");
  const py::object capsule = py::getattr(tensor_type, dlpack::kExchangeApiAttribute, py::none());
  const ExchangeApi* api = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kExchangeApiCapsule)) {
    void* pointer = PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeApiCapsule);
    api = static_cast<const ExchangeApi*>(pointer);
  }
  while (api != nullptr && api->version.major != dlpack::kMajorVersion) api = api->older;
  if (api == nullptr || api->tensor_from_object == nullptr) {
    throw py::import_error("this torch does not describe its tensors as DLPack 1 does; install torch>=2.11");
  }
  return {tensor_type, api};
}

const TorchApi& torch_api() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<TorchApi> stored;
  return stored.call_once_and_store_result(&find_torch).get_stored();
}

bool is_a(py::handle object, py::handle type) {
  return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
}

std::string text_of(DataType dtype) {
  const std::string bits = std::to_string(dtype.bits);
  switch (dtype.code) {
    case dlpack::kInt:
      return "int" + bits;
    case dlpack::kUInt:
      return "uint" + bits;
    case dlpack::kFloat:
      return "float" + bits;
    case dlpack::kBool:
      return "bool";
    default:
      return "another type of " + bits + " bits";
  }
}

bool same(DataType a, DataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

/// The type of a format of Python's `struct` in native byte order.
DataType dtype_of_format(const char* format, py::ssize_t size) {
  if (format == nullptr) return dtype_of<uint8_t>();
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  const auto bits = static_cast<uint8_t>(8 * size);
  if (std::strlen(format) != 1) return {255, bits, 1};
  if (*format == '?') return {dlpack::kBool, bits, 1};
  if (std::strchr("bhilqn", *format) != nullptr) return {dlpack::kInt, bits, 1};
  if (std::strchr("BHILQNc", *format) != nullptr) return {dlpack::kUInt, bits, 1};
  if (std::strchr("fd", *format) != nullptr) return {dlpack::kFloat, bits, 1};
  return {255, bits, 1};
}

std::string text_of(TensorArg::Shape shape) {
  std::string text = "[";
  for (const Dim& dim : shape) text += (text.size() > 1 ? ", " : "") + dim.text();
  return text + "]";
}

}  // namespace

TensorArg::TensorArg(py::handle object) : object_(object) {
  const TorchApi& torch = torch_api();
  is_tensor_ = is_a(object, torch.tensor_type);
  if (is_tensor_) {
    describe_tensor(object, *torch.exchange);
  } else if (PyObject_CheckBuffer(object.ptr()) != 0) {
    describe_buffer(object);
  } else {
    other_ = Py_TYPE(object.ptr())->tp_name;
  }
}

void TensorArg::describe_tensor(py::handle object, const ExchangeApi& api) {
  dlpack::Tensor tensor;
  if (api.tensor_from_object(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    name_tensor(object);
    return;
  }
  if (tensor.device.type != dlpack::kCpu && tensor.device.type != dlpack::kPinned) {
    other_ = "a tensor on " + py::str(object.attr("device")).cast<std::string>();
    return;
  }
  if (tensor.ndim <= kMaxDims) {
    std::copy_n(tensor.shape, tensor.ndim, shape_.begin());
    std::copy_n(tensor.strides, tensor.ndim, strides_.begin());
  }
  set_dense(static_cast<char*>(tensor.data) + tensor.byte_offset, tensor.dtype, tensor.ndim, Kind::kDense);
}

/// Describes a tensor without a DLPack address: on meta, sparse, or a wrapper.
void TensorArg::name_tensor(py::handle object) {
  const auto device = py::str(object.attr("device").attr("type")).cast<std::string>();
  const auto layout = py::str(object.attr("layout")).cast<std::string>();
  if (device != "cpu" || layout != "torch.strided") {
    other_ = "a tensor on " + device + (layout == "torch.strided" ? "" : " with layout " + layout);
    return;
  }
  other_ = "a tensor without memory";
}

void TensorArg::describe_buffer(py::handle object) {
  auto* view = new Py_buffer;
  bool writable = PyObject_GetBuffer(object.ptr(), view, PyBUF_RECORDS) == 0;
  if (!writable) {
    PyErr_Clear();
    if (PyObject_GetBuffer(object.ptr(), view, PyBUF_RECORDS_RO) != 0) {
      PyErr_Clear();
      delete view;
      other_ = Py_TYPE(object.ptr())->tp_name;
      return;
    }
  }
  buffer_ = std::shared_ptr<Py_buffer>(view, [](Py_buffer* held) {
    PyBuffer_Release(held);
    delete held;
  });
  if (view->itemsize == 0) {
    other_ = "a buffer of empty elements";
    return;
  }
  const DataType dtype = dtype_of_format(view->format, view->itemsize);
  for (int dim = 0; dim < std::min(view->ndim, kMaxDims); ++dim) {
    shape_[dim] = view->shape[dim];
    strides_[dim] = view->strides[dim] / view->itemsize;
    if (view->strides[dim] % view->itemsize != 0) {
      other_ = "a buffer whose elements are not a whole number of elements apart";
      return;
    }
  }
  set_dense(view->buf, dtype, view->ndim, writable ? Kind::kDense : Kind::kReadOnly);
}

void TensorArg::set_dense(void* data, DataType dtype, int32_t ndim, Kind kind) {
  if (ndim > kMaxDims) {
    other_ = "a tensor of " + std::to_string(ndim) + " dimensions";
    return;
  }
  data_ = data;
  dtype_ = dtype;
  ndim_ = ndim;
  kind_ = kind;
}

int64_t TensorArg::numel() const {
  int64_t count = 1;
  for (int dim = 0; dim < ndim_; ++dim) count *= shape_[dim];
  return count;
}

bool TensorArg::is_packed() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (int dim = ndim_ - 1; dim >= 0; --dim) {
    if (shape_[dim] != 1 && strides_[dim] != expected) return false;
    expected *= shape_[dim];
  }
  return true;
}

void TensorArg::check_memory(const char* name, bool writes) const {
  const std::string who(name);
  if (kind_ == Kind::kOther) {
    const std::string message = who + " must be a dense tensor on the CPU, got " + other_;
    if (is_tensor_) throw std::invalid_argument(message);
    throw py::type_error(message);
  }
  if (writes && kind_ == Kind::kReadOnly) throw std::invalid_argument(who + " must be writable");
  if (data_ == nullptr && numel() > 0) throw std::invalid_argument(who + " is a tensor without memory");
}

void TensorArg::check(const char* name, DataType dtype, Shape shape, bool any_shape, bool writes,
                      bool packed) const {
  bool fits = kind_ != Kind::kOther && same(dtype_, dtype);
  if (!any_shape) {
    fits = fits && static_cast<std::size_t>(ndim_) == shape.size();
    int dim = 0;
    for (const Dim& wanted : shape) fits = fits && wanted.fits(shape_[dim++]);
  }
  const bool has_memory = fits && (data_ != nullptr || numel() == 0) && !(writes && kind_ != Kind::kDense);
  if (has_memory && (!packed || is_packed())) return;
  check_memory(name, writes);
  const char* how = fits ? "contiguous " : "";
  throw std::invalid_argument(std::string(name) + " must be " + how + text_of(dtype) + " " + text_of(shape) +
                              ", got " + text());
}

void TensorArg::check_bytes(const char* name, int64_t num_bytes, bool writes) const {
  check_memory(name, writes);
  if (nbytes() != num_bytes) {
    throw std::invalid_argument(std::string(name) + " must hold " + std::to_string(num_bytes) +
                                " bytes, got " + text() + " of " + std::to_string(nbytes()) + " bytes");
  }
  if (!is_packed()) {
    throw std::invalid_argument(std::string(name) + " must be contiguous, got " + text());
  }
}

void TensorArg::check_rows(const char* name, int64_t row_bytes) const {
  if (nbytes() % row_bytes == 0) return;
  throw std::invalid_argument(std::string(name) + " must have " + std::to_string(row_bytes) +
                              " bytes each, got " + std::to_string(nbytes()) + " in all");
}

std::string TensorArg::text() const {
  std::string text = text_of(dtype_) + " [";
  for (int dim = 0; dim < ndim_; ++dim) text += (dim > 0 ? ", " : "") + std::to_string(shape_[dim]);
  text += "]";
  if (is_packed()) return text;
  text += " with strides [";
  for (int dim = 0; dim < ndim_; ++dim) text += (dim > 0 ? ", " : "") + std::to_string(strides_[dim]);
  return text + "]";
}

void check_range(const char* name, Span<const int64_t> values, int64_t low, int64_t high) {
  const auto size = static_cast<uint64_t>(std::max<int64_t>(high - low, 0));
  bool wrong = false;
  for (int64_t i = 0; i < values.size; ++i) {
    wrong |= static_cast<uint64_t>(values.data[i]) - static_cast<uint64_t>(low) >= size;
  }
  if (!wrong) return;
  for (int64_t i = 0; i < values.size; ++i) {
    if (values.data[i] >= low && values.data[i] < high) continue;
    throw std::out_of_range(std::string(name) + " must be from " + std::to_string(low) + " to " +
                            std::to_string(high - 1) + ", got " + std::to_string(values.data[i]) +
                            " at position " + std::to_string(i));
  }
}

void check_number(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  const std::string range = high == std::numeric_limits<int64_t>::max()
                                ? "at least " + std::to_string(low)
                                : "from " + std::to_string(low) + " to " + std::to_string(high);
  throw std::invalid_argument(std::string(name) + " must be " + range + ", got " + std::to_string(value));
}

double checked_tick(double seconds_per_tick) {
  if (seconds_per_tick >= 1e-9 && !std::isinf(seconds_per_tick)) return seconds_per_tick;
  throw py::value_error("seconds_per_tick must be finite and at least 1e-9, got " +
                        std::to_string(seconds_per_tick));
}

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) throw std::invalid_argument("these sizes exceed 64 bits");
  return result;
}
