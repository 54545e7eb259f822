#include <algorithm>

#include "bindings.hpp"
#include "tgflow/row_cache.hpp"

namespace {

using tgflow::CacheCounts;
using tgflow::CacheLookup;
using tgflow::CachePolicy;
using tgflow::CacheSchedule;
using tgflow::RowCache;
using no_gil = py::call_guard<py::gil_scoped_release>;

CacheSchedule schedule(address_t id, address_t hit, address_t admit, int64_t size) {
  return {at<const int64_t>(id), at<const int32_t>(hit), at<const int32_t>(admit), size};
}

void look_up(RowCache& cache, address_t id, int64_t n, int64_t size, CacheLookup& out) {
  cache.look_up(at<const int64_t>(id), n, size, out);
}

void preload(RowCache& cache, address_t id, int64_t n, int64_t size, CacheLookup& out) {
  cache.preload(at<const int64_t>(id), n, size, out);
}

void apply(RowCache& cache, const CacheSchedule& what, address_t id, int64_t n, int64_t size,
           CacheLookup& out) {
  cache.apply(what, at<const int64_t>(id), n, size, out);
}

void restore(RowCache& cache, address_t id, address_t key, int64_t size, CacheLookup& out) {
  cache.restore({at<int64_t>(id), at<int64_t>(key)}, size, out);
}

void snapshot(const RowCache& cache, address_t id, address_t key) {
  cache.snapshot({at<int64_t>(id), at<int64_t>(key)});
}

void copy(RowCache& cache, const CacheLookup& lookup, address_t rows, bool by_id, address_t out) {
  cache.copy(lookup, {at<const char>(rows), by_id}, at<char>(out));
}

void gather(RowCache& cache, address_t table, int64_t size, address_t id, int64_t n, address_t out) {
  cache.gather(at<const char>(table), size, at<const int64_t>(id), n, at<char>(out));
}

void append(RowCache& cache, int64_t first, int64_t n, address_t rows) {
  cache.append(first, n, at<const char>(rows));
}

void write_rows(RowCache& cache, address_t id, int64_t n, address_t rows) {
  cache.write(at<const int64_t>(id), n, at<const char>(rows));
}

int64_t num_misses(const CacheLookup& lookup) { return static_cast<int64_t>(lookup.miss.size()); }

void copy_misses(const CacheLookup& lookup, address_t out) {
  std::copy(lookup.miss.begin(), lookup.miss.end(), at<int64_t>(out));
}

void bind_parts(py::module_& m) {
  py::enum_<CachePolicy>(m, "CachePolicy")
      .value("lru", CachePolicy::kLru)
      .value("lfu", CachePolicy::kLfu)
      .value("fifo", CachePolicy::kFifo)
      .value("static", CachePolicy::kStatic)
      .value("belady", CachePolicy::kGiven);
  py::class_<CacheCounts>(m, "CacheCounts")
      .def_readonly("hits", &CacheCounts::hits)
      .def_readonly("misses", &CacheCounts::misses)
      .def_readonly("admitted", &CacheCounts::admitted)
      .def_readonly("evicted", &CacheCounts::evicted)
      .def_readonly("bypassed", &CacheCounts::bypassed)
      .def_readonly("preloaded", &CacheCounts::preloaded)
      .def_readonly("written", &CacheCounts::written);
  py::class_<CacheLookup>(m, "CacheLookup")
      .def(py::init<>())
      .def_property_readonly("num_misses", &num_misses)
      .def("copy_misses", &copy_misses, py::arg("out"), no_gil());
  py::class_<CacheSchedule>(m, "CacheSchedule")
      .def(py::init(&schedule), py::arg("id"), py::arg("hit"), py::arg("admit"), py::arg("size"));
  py::register_exception<tgflow::ScheduleMismatch>(m, "ScheduleMismatch", PyExc_RuntimeError);
}

}  // namespace

void bind_cache(py::module_& m) {
  bind_parts(m);
  py::class_<RowCache>(m, "RowCache")
      .def(py::init<CachePolicy, int64_t, int64_t>(), py::arg("policy"), py::arg("capacity"),
           py::arg("row_bytes"))
      .def("gather", &gather, py::arg("table"), py::arg("size"), py::arg("id"), py::arg("n"), py::arg("out"),
           no_gil())
      .def("look_up", &look_up, py::arg("id"), py::arg("n"), py::arg("size"), py::arg("out"), no_gil())
      .def("preload", &preload, py::arg("id"), py::arg("n"), py::arg("size"), py::arg("out"), no_gil())
      .def("apply", &apply, py::arg("schedule"), py::arg("id"), py::arg("n"), py::arg("size"), py::arg("out"),
           no_gil())
      .def("append", &append, py::arg("first"), py::arg("n"), py::arg("rows"), no_gil())
      .def("restore", &restore, py::arg("id"), py::arg("key"), py::arg("size"), py::arg("out"), no_gil())
      .def("snapshot", &snapshot, py::arg("id"), py::arg("key"), no_gil())
      .def("copy", &copy, py::arg("lookup"), py::arg("rows"), py::arg("by_id"), py::arg("out"), no_gil())
      .def("finish", &RowCache::finish, py::arg("lookup"), py::arg("done"), no_gil())
      .def("begin_change", &RowCache::begin_change, no_gil())
      .def("end_change", &RowCache::end_change, no_gil())
      .def("write", &write_rows, py::arg("id"), py::arg("n"), py::arg("rows"), no_gil())
      .def("truncate", &RowCache::truncate, py::arg("size"), no_gil())
      .def("counts", &RowCache::counts, no_gil())
      .def("reset_counts", &RowCache::reset_counts, no_gil())
      .def("bytes", &RowCache::bytes, no_gil());
}
