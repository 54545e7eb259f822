// The part of DLPack's C interface that the bindings use: tensor metadata without the framework's headers.
// Layouts are fixed by DLPack 1.x (https://github.com/dmlc/dlpack, dlpack.h); a new major version changes
// them.
#pragma once

#include <cstdint>

namespace dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr int32_t kCpu = 1;
constexpr int32_t kPinned = 3;  // host memory that a CUDA device can read

enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBool = 6 };

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Device {
  int32_t type;
  int32_t index;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  ///< In elements.
  uint64_t byte_offset;
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

/// The function table of `torch.Tensor.__dlpack_c_exchange_api__`; unused entries are `void*`.
struct ExchangeApi {
  Version version;
  ExchangeApi* older;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  /// Describes a tensor that `object` still owns. Returns 0, or -1 with a Python error.
  int (*tensor_from_object)(void* object, Tensor* out);
  void* current_stream;
};

constexpr const char* kExchangeApiAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kExchangeApiCapsule = "dlpack_exchange_api";

}  // namespace dlpack
