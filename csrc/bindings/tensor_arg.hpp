// Tensor arguments of bindings: each is fully checked before anything reads or writes it.
//
// An argument is a `torch.Tensor` in CPU memory or, for input only, any object with Python's buffer
// protocol (a numpy array). Elements are `const T` to be read and `T` to be written. A mismatch
// raises ValueError (TypeError if it is not a tensor) with the argument's name, its required and its actual
// type:
//
//   edge_x must be float32 [R, 172], got float32 [R, 100]          table must be on the CPU, got cuda
//
// The checks need no GIL and cost nanoseconds. A view is valid until the call returns and no longer: no
// object may store one, as Python may free the tensor. Where native work outlives the call, bind with
// `py::keep_alive` and document it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "dlpack.hpp"
#include "tgflow/events.hpp"

namespace py = pybind11;
using namespace pybind11::literals;
using no_gil = py::call_guard<py::gil_scoped_release>;

template <typename T>
struct Span {
  T* data;
  int64_t size;
};

/// Required length of a dimension, or a letter for any length.
class Dim {
 public:
  Dim(int64_t length) : length_(length) {}  // NOLINT: meant to be written as a number
  Dim(int length) : length_(length) {}      // NOLINT
  Dim(const char* letter) : letter_(letter) {}

  bool fits(int64_t length) const { return letter_ != nullptr || length == length_; }
  std::string text() const { return letter_ == nullptr ? std::to_string(length_) : letter_; }

 private:
  int64_t length_ = 0;
  const char* letter_ = nullptr;
};

template <typename T>
constexpr dlpack::DataType dtype_of() {
  using V = std::remove_cv_t<T>;
  constexpr auto code = std::is_same_v<V, bool>       ? dlpack::kBool
                        : std::is_floating_point_v<V> ? dlpack::kFloat
                        : std::is_signed_v<V>         ? dlpack::kInt
                                                      : dlpack::kUInt;
  return {code, 8 * sizeof(V), 1};
}

/// A dense tensor of up to 8 dimensions, or a description of another argument.
class TensorArg {
 public:
  static constexpr int kMaxDims = 8;
  using Shape = std::initializer_list<Dim>;

  TensorArg() = default;
  /// Describes any `object`. Requires the GIL.
  explicit TensorArg(py::handle object);
  /// The object, which lives as long as the call.
  py::handle object() const { return object_; }

  /// The elements of a contiguous tensor of this shape.
  template <typename T>
  T* data(const char* name, Shape shape) const {
    check(name, dtype_of<T>(), shape, false, !std::is_const_v<T>);
    return static_cast<T*>(data_);
  }

  /// The first element of a tensor of this shape and any strides; see `stride`.
  template <typename T>
  T* strided(const char* name, Shape shape) const {
    check(name, dtype_of<T>(), shape, false, !std::is_const_v<T>, false);
    return static_cast<T*>(data_);
  }

  /// The first element of a tensor of any shape and strides.
  template <typename T>
  T* strided(const char* name) const {
    check(name, dtype_of<T>(), {"..."}, true, !std::is_const_v<T>, false);
    return static_cast<T*>(data_);
  }

  /// A contiguous tensor of one dimension.
  template <typename T>
  Span<T> vector(const char* name) const {
    return {data<T>(name, {"N"}), shape_[0]};
  }

  /// The elements of a contiguous tensor of any shape, in row-major order.
  template <typename T>
  Span<T> elements(const char* name) const {
    check(name, dtype_of<T>(), {"..."}, true, !std::is_const_v<T>);
    return {static_cast<T*>(data_), numel()};
  }

  /// All bytes of a contiguous tensor of any type and shape, `num_bytes` of them.
  template <typename T>
  T* bytes(const char* name, int64_t num_bytes) const {
    static_assert(sizeof(T) == 1);
    check_bytes(name, num_bytes, !std::is_const_v<T>);
    return static_cast<T*>(data_);
  }

  /// The bytes of a contiguous tensor, and their number.
  template <typename T>
  Span<T> bytes(const char* name) const {
    static_assert(sizeof(T) == 1);
    check_bytes(name, nbytes(), !std::is_const_v<T>);
    return {static_cast<T*>(data_), nbytes()};
  }

  /// The bytes of a contiguous tensor of rows of `row_bytes`, and the number of rows.
  template <typename T>
  Span<T> rows(const char* name, int64_t row_bytes) const {
    const auto held = bytes<T>(name);
    check_rows(name, row_bytes);
    return {held.data, held.size / row_bytes};
  }

  template <typename T>
  bool has_type() const {
    constexpr auto dtype = dtype_of<T>();
    return dtype_.code == dtype.code && dtype_.bits == dtype.bits && dtype_.lanes == 1;
  }

  int dims() const { return ndim_; }
  int64_t length(int dim) const { return shape_[dim]; }
  int64_t stride(int dim) const { return strides_[dim]; }
  int64_t numel() const;
  int64_t nbytes() const { return numel() * dtype_.bits / 8; }

 private:
  enum class Kind : uint8_t { kOther, kDense, kReadOnly };

  void describe_tensor(py::handle object, const dlpack::ExchangeApi& api);
  void name_tensor(py::handle object);
  void describe_buffer(py::handle object);
  /// Stores it as a dense tensor, unless it has too many dimensions.
  void set_dense(void* data, dlpack::DataType dtype, int32_t ndim, Kind kind);

  /// Raises unless it is a tensor with these properties, contiguous if `packed`.
  void check(const char* name, dlpack::DataType dtype, Shape shape, bool any_shape, bool writes,
             bool packed = true) const;
  void check_bytes(const char* name, int64_t num_bytes, bool writes) const;
  void check_rows(const char* name, int64_t row_bytes) const;
  void check_memory(const char* name, bool writes) const;
  bool is_packed() const;
  std::string text() const;

  py::handle object_;
  void* data_ = nullptr;
  std::array<int64_t, kMaxDims> shape_{};
  std::array<int64_t, kMaxDims> strides_{};
  dlpack::DataType dtype_{};
  int32_t ndim_ = 0;
  Kind kind_ = Kind::kOther;
  bool is_tensor_ = false;
  std::string other_;                  ///< Its description, if not a dense CPU tensor.
  std::shared_ptr<Py_buffer> buffer_;  ///< Owns a buffer's memory; released with the GIL.
};

using OptionalTensor = std::optional<TensorArg>;

/// The elements of an optional argument, null for None.
template <typename T>
T* data_or_null(const std::optional<TensorArg>& tensor, const char* name, TensorArg::Shape shape) {
  return tensor ? tensor->data<T>(name, shape) : nullptr;
}

/// The events with these columns, int64 and of equal length; `relation` may be None.
tgflow::Events events_of(const TensorArg& src, const TensorArg& dst, const TensorArg& t,
                         const OptionalTensor& relation);

/// Raises IndexError with the first of `values` outside of [low, high), if any.
void check_range(const char* name, Span<const int64_t> values, int64_t low, int64_t high);

/// Raises ValueError unless low <= value <= high.
void check_number(const char* name, int64_t value, int64_t low, int64_t high = INT64_MAX);

/// Returns the length of a tick; throws ValueError unless it is at least a nanosecond.
double checked_tick(double seconds_per_tick);

/// a * b, or ValueError if it exceeds 64 bits.
int64_t product(int64_t a, int64_t b);

namespace pybind11::detail {

template <>
struct type_caster<TensorArg> {
  PYBIND11_TYPE_CASTER(TensorArg, const_name("torch.Tensor"));

  /// Never fails, so that the binding can report the argument's name.
  bool load(handle source, bool) {
    value = TensorArg(source);
    return true;
  }
};

}  // namespace pybind11::detail
