#include "bindings.hpp"
#include "tgflow/gather.hpp"
#include "tgflow/memory.hpp"
#include "tgflow/row_file.hpp"
#include "tgflow/row_reader.hpp"

using tgflow::ReservedMemory;
using tgflow::RowFile;
using tgflow::RowReader;

namespace bindings::tables {

/// So that no buffer of rows exceeds what can be asked for.
constexpr int64_t kMostRowBytes = int64_t{1} << 31;

/// `size` rows of `row_bytes` at the start of a tensor of bytes.
template <typename T>
T* first_rows(const TensorArg& rows, int64_t row_bytes, int64_t size) {
  check_number("row_bytes", row_bytes, 1);
  check_number("size", size, 0);
  const auto bytes = rows.bytes<T>("rows");
  if (product(size, row_bytes) <= bytes.size) return bytes.data;
  throw std::invalid_argument("rows must hold " + std::to_string(size) + " rows of " +
                              std::to_string(row_bytes) + " bytes, got " + std::to_string(bytes.size) +
                              " bytes");
}

void gather_rows(const TensorArg& rows, int64_t row_bytes, int64_t size, const TensorArg& id,
                 const TensorArg& out) {
  const auto* table = first_rows<const std::byte>(rows, row_bytes, size);
  const auto ids = id.elements<const int64_t>("id");
  tgflow::gather_rows({table, row_bytes, size}, ids.data, ids.size,
                      out.bytes<std::byte>("out", product(ids.size, row_bytes)));
}

void scatter_rows(const TensorArg& rows, int64_t row_bytes, int64_t size, const TensorArg& id,
                  const TensorArg& source) {
  auto* table = first_rows<std::byte>(rows, row_bytes, size);
  const auto ids = id.vector<const int64_t>("id");
  check_range("id", ids, 0, size);
  tgflow::scatter_rows(table, row_bytes, ids.data, ids.size,
                       source.bytes<const std::byte>("source", product(ids.size, row_bytes)));
}

/// The committed bytes: memory does not move, so an older view stays valid.
py::buffer_info bytes_of(const ReservedMemory& memory) {
  return {static_cast<uint8_t*>(memory.data()), static_cast<py::ssize_t>(memory.committed())};
}

void commit(ReservedMemory& memory, std::size_t bytes) {
  check_number("bytes", static_cast<int64_t>(bytes), 0, static_cast<int64_t>(memory.size()));
  memory.commit(bytes);
}

void clear(ReservedMemory& memory, std::size_t begin, std::size_t bytes) {
  const auto size = static_cast<int64_t>(memory.committed());
  check_number("begin", static_cast<int64_t>(begin), 0, size);
  check_number("bytes", static_cast<int64_t>(bytes), 0, size - static_cast<int64_t>(begin));
  memory.clear(begin, bytes);
}

std::unique_ptr<RowFile> open_file(const std::string& path, int64_t row_bytes, const std::string& kind) {
  check_number("row_bytes", row_bytes, 1, kMostRowBytes);
  return std::make_unique<RowFile>(path, row_bytes, kind);
}

void append(RowFile& file, const TensorArg& rows) {
  const auto held = rows.rows<const std::byte>("rows", file.row_bytes());
  file.append(held.data, held.size);
}

void truncate(RowFile& file, int64_t size) {
  check_number("size", size, 0);
  file.truncate(size);
}

void forget(RowFile& file, int64_t first) {
  check_number("first", first, 0);
  file.forget(first);
}

/// Starts to read to `out`. The request writes there until it is done, so it owns `out` and the reader; not
/// by py::keep_alive, which treats a failed conversion of an argument as a result.
py::object start(RowReader& reader, const TensorArg& id, int64_t size, const py::object& out) {
  const TensorArg to(out);
  const auto ids = id.elements<const int64_t>("id");
  check_number("size", size, 0, reader.file().size());
  auto* rows = to.bytes<std::byte>("out", product(ids.size, reader.file().row_bytes()));
  std::unique_ptr<RowReader::Request> started;
  {
    const py::gil_scoped_release released;
    started = reader.start(ids.data, ids.size, size, rows);
  }
  py::object request = py::cast(std::move(started));
  py::detail::keep_alive_impl(request, py::cast(&reader));
  py::detail::keep_alive_impl(request, out);
  return request;
}

/// Translates file errors to Python's OSError, with the errno.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const tgflow::FileError& error) {
    const py::tuple arguments = py::make_tuple(error.code(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  }
}

void bind_row_file(py::module_& m) {
  py::register_exception<tgflow::DamagedFile>(m, "DamagedFile", PyExc_OSError);
  py::register_exception_translator(&translate);
  py::class_<RowFile>(m, "RowFile")
      .def(py::init(&open_file), "path"_a, "row_bytes"_a, "kind"_a, no_gil())
      .def("__len__", &RowFile::size)
      .def("append", &append, "rows"_a, no_gil())
      .def("sync", &RowFile::sync, no_gil())
      .def("settle", &RowFile::settle, no_gil())
      .def("truncate", &truncate, "size"_a, no_gil())
      .def("forget", &forget, "first"_a, no_gil());
}

#ifdef TGFLOW_FAULTS
void bind_faults(py::module_& m) {
  using tgflow::FileOp;
  py::enum_<FileOp>(m, "FileOp")
      .value("read", FileOp::kRead)
      .value("write", FileOp::kWrite)
      .value("sync", FileOp::kSync);
  m.def("inject_fault", &tgflow::inject_fault, "op"_a, "after"_a, "times"_a, "result"_a);
}
#else
void bind_faults(py::module_&) {}
#endif

void bind_row_reader(py::module_& m) {
  py::class_<RowReader::Request>(m, "RowRequest")
      .def("wait", &RowReader::Request::wait, no_gil())
      .def_property_readonly("is_done", &RowReader::Request::is_done);
  py::class_<RowReader>(m, "RowReader")
      .def(py::init<const RowFile&, int64_t, const std::string&>(), "file"_a, "budget"_a, "wish"_a,
           py::keep_alive<1, 2>(), no_gil())
      .def("start", &start, "id"_a, "size"_a, "out"_a)
      .def_property_readonly("way", [](const RowReader& reader) { return reader.way().name(); })
      .def_property_readonly("buffer_bytes", &RowReader::buffer_bytes);
  m.def(
      "probe_reads", [](const std::string& path) { return tgflow::probe_reads(path, "auto").name(); },
      "path"_a, no_gil());
}

}  // namespace bindings::tables

void bind_tables(py::module_& m) {
  using namespace bindings::tables;
  py::class_<ReservedMemory>(m, "ReservedMemory", py::buffer_protocol())
      .def(py::init<size_t>(), "bytes"_a)
      .def("__len__", &ReservedMemory::size)
      .def_property_readonly("committed", &ReservedMemory::committed)
      .def("commit", &commit, "bytes"_a)
      .def("drop", &ReservedMemory::drop, "bytes"_a)
      .def("use_small_pages", &ReservedMemory::use_small_pages)
      .def("clear", &clear, "begin"_a, "bytes"_a)
      .def_buffer(&bytes_of);
  bind_row_file(m);
  bind_row_reader(m);
  bind_faults(m);
  m.def("gather_rows", &gather_rows, "rows"_a, "row_bytes"_a, "size"_a, "id"_a, "out"_a, no_gil());
  m.def("scatter_rows", &scatter_rows, "rows"_a, "row_bytes"_a, "size"_a, "id"_a, "source"_a, no_gil());
}
