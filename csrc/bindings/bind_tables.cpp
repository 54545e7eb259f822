#include "bindings.hpp"
#include "tgflow/file_ops.hpp"
#include "tgflow/gather.hpp"
#include "tgflow/reserved_array.hpp"
#include "tgflow/row_file.hpp"
#include "tgflow/row_reader.hpp"

using tgflow::FileOp;
using tgflow::ReservedMemory;
using tgflow::RowFile;
using tgflow::RowReader;

namespace {

void gather_rows(address_t rows, int64_t row_bytes, int64_t size, address_t id, int64_t n, address_t out) {
  tgflow::gather_rows({at<const std::byte>(rows), row_bytes, size}, at<const int64_t>(id), n,
                      at<std::byte>(out));
}

void scatter_rows(address_t rows, int64_t row_bytes, address_t id, int64_t n, address_t from) {
  tgflow::scatter_rows(at<std::byte>(rows), row_bytes, at<const int64_t>(id), n, at<const std::byte>(from));
}

/// All of the reservation, of which only the committed beginning may be touched.
py::buffer_info bytes_of(const ReservedMemory& memory) {
  return {static_cast<uint8_t*>(memory.data()), static_cast<py::ssize_t>(memory.size())};
}

/// Errors of files become Python's OSError, with the errno.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const tgflow::FileError& error) {
    const py::tuple arguments = py::make_tuple(error.code(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

void bind_row_file(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::register_exception<tgflow::DamagedFile>(m, "DamagedFile", PyExc_OSError);
  py::register_exception_translator(&translate);
  py::class_<RowFile>(m, "RowFile")
      .def(py::init<const std::string&, int64_t, const std::string&>(), py::arg("path"), py::arg("row_bytes"),
           py::arg("kind"), no_gil)
      .def("__len__", &RowFile::size)
      .def_property_readonly("synced", &RowFile::synced)
      .def(
          "append",
          [](RowFile& file, address_t rows, int64_t n) { file.append(at<const std::byte>(rows), n); },
          py::arg("rows"), py::arg("n"), no_gil)
      .def("sync", &RowFile::sync, no_gil)
      .def("truncate", &RowFile::truncate, py::arg("size"), no_gil);
  py::enum_<FileOp>(m, "FileOp")
      .value("read", FileOp::kRead)
      .value("write", FileOp::kWrite)
      .value("sync", FileOp::kSync);
  m.def("inject_fault", &tgflow::inject_fault, py::arg("op"), py::arg("after"), py::arg("times"),
        py::arg("result"));
}

void bind_row_reader(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<RowReader::Request>(m, "RowRequest")
      .def("wait", &RowReader::Request::wait, no_gil)
      .def_property_readonly("is_done", &RowReader::Request::is_done);
  py::class_<RowReader>(m, "RowReader")
      .def(py::init<const RowFile&, int64_t, const std::string&>(), py::arg("file"), py::arg("budget"),
           py::arg("wish"), py::keep_alive<1, 2>(), no_gil)
      .def(
          "start",
          [](RowReader& reader, address_t id, int64_t n, int64_t size, address_t out) {
            return reader.start(at<const int64_t>(id), n, size, at<std::byte>(out));
          },
          py::arg("id"), py::arg("n"), py::arg("size"), py::arg("out"), no_gil)
      .def_property_readonly("way", [](const RowReader& reader) { return reader.way().name(); })
      .def_property_readonly("buffer_bytes", &RowReader::buffer_bytes)
      .def_property_readonly("num_reads", &RowReader::num_reads)
      .def_property_readonly("bytes_read", &RowReader::bytes_read);
  m.def(
      "probe_reads", [](const std::string& path) { return tgflow::probe_reads(path, "auto").name(); },
      py::arg("path"), no_gil);
}

}  // namespace

void bind_tables(py::module_& m) {
  py::class_<ReservedMemory>(m, "ReservedMemory", py::buffer_protocol())
      .def(py::init<size_t>(), py::arg("bytes"))
      .def("__len__", &ReservedMemory::size)
      .def("commit", &ReservedMemory::commit, py::arg("bytes"))
      .def_buffer(&bytes_of);
  bind_row_file(m);
  bind_row_reader(m);
  m.def("gather_rows", &gather_rows, py::arg("rows"), py::arg("row_bytes"), py::arg("size"), py::arg("id"),
        py::arg("n"), py::arg("out"), py::call_guard<py::gil_scoped_release>());
  m.def("scatter_rows", &scatter_rows, py::arg("rows"), py::arg("row_bytes"), py::arg("id"), py::arg("n"),
        py::arg("source"), py::call_guard<py::gil_scoped_release>());
}
