#include <pybind11/numpy.h>

#include "bindings.hpp"
#include "tgflow/event_log.hpp"

namespace bindings::log {

using tgflow::EventLog;

py::object column(const py::object& self, const int64_t* data, int64_t start, int64_t stop) {
  return py::array_t<int64_t>(stop - start, data + start, self);  // a view that keeps the log alive
}

py::tuple columns(const py::object& self, int64_t start, int64_t stop) {
  const EventLog& log = self.cast<const EventLog&>();
  check_number("stop", stop, 0, log.size());
  check_number("start", start, 0, stop);
  py::object label = py::none();
  if (log.has_label()) label = column(self, log.label(), start, stop);
  return py::make_tuple(column(self, log.src(), start, stop), column(self, log.dst(), start, stop),
                        column(self, log.t(), start, stop), label);
}

void check_eids(const EventLog& log, const TensorArg& eid) {
  const auto ids = eid.vector<const int64_t>("eid");
  log.check_eids(ids.data, ids.size);
}

void gather(const EventLog& log, const TensorArg& eid, const TensorArg& src, const TensorArg& dst,
            const TensorArg& t, const OptionalTensor& label) {
  const auto ids = eid.vector<const int64_t>("eid");
  if (label && !log.has_label()) throw py::value_error("label must be None: the log has no labels");
  log.gather(ids.data, ids.size, src.data<int64_t>("src", {ids.size}), dst.data<int64_t>("dst", {ids.size}),
             t.data<int64_t>("t", {ids.size}), data_or_null<int64_t>(label, "label", {ids.size}));
}

}  // namespace bindings::log

tgflow::Events events_of(const TensorArg& src, const TensorArg& dst, const TensorArg& t,
                         const OptionalTensor& label) {
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  return {sources.data, dst.data<const int64_t>("dst", {size}), t.data<const int64_t>("t", {size}),
          data_or_null<const int64_t>(label, "label", {size}), size};
}

// A log belongs to its graph, which alone appends to it.
void bind_log(py::module_& m) {
  using namespace bindings::log;
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<EventLog>(m, "EventLog")
      .def("__len__", &EventLog::size)
      .def_property_readonly("num_nodes", &EventLog::num_nodes)
      .def_property_readonly("has_label", &EventLog::has_label)
      .def_property_readonly("clock", &EventLog::clock)
      .def("position", &EventLog::position, py::arg("t"), no_gil)
      .def("check_eids", &check_eids, py::arg("eid"), no_gil)
      .def("columns", &columns, py::arg("start"), py::arg("stop"))
      .def("gather", &gather, py::arg("eid"), py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"),
           no_gil);
}
