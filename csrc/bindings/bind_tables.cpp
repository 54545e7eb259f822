#include "bindings.hpp"
#include "tgflow/gather.hpp"
#include "tgflow/reserved_array.hpp"

using tgflow::ReservedMemory;

namespace {

void gather_rows(address_t rows, int64_t row_bytes, int64_t size, address_t id, int64_t n, address_t out) {
  tgflow::gather_rows({at<const std::byte>(rows), row_bytes, size}, at<const int64_t>(id), n,
                      at<std::byte>(out));
}

/// All of the reservation, of which only the committed beginning may be touched.
py::buffer_info bytes_of(const ReservedMemory& memory) {
  return {static_cast<uint8_t*>(memory.data()), static_cast<py::ssize_t>(memory.size())};
}

}  // namespace

void bind_tables(py::module_& m) {
  py::class_<ReservedMemory>(m, "ReservedMemory", py::buffer_protocol())
      .def(py::init<size_t>(), py::arg("bytes"))
      .def("__len__", &ReservedMemory::size)
      .def("commit", &ReservedMemory::commit, py::arg("bytes"))
      .def_buffer(&bytes_of);
  m.def("gather_rows", &gather_rows, py::arg("rows"), py::arg("row_bytes"), py::arg("size"), py::arg("id"),
        py::arg("n"), py::arg("out"), py::call_guard<py::gil_scoped_release>());
}
