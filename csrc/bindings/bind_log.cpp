#include <pybind11/numpy.h>

#include <optional>

#include "bindings.hpp"
#include "tgflow/event_log.hpp"

namespace {

using tgflow::EventLog;

py::object column(const py::object& self, const int64_t* data, int64_t start, int64_t stop) {
  return py::array_t<int64_t>(stop - start, data + start, self);  // a view that keeps the log alive
}

}  // namespace

tgflow::Events events_at(address_t src, address_t dst, address_t t, address_t label, int64_t size) {
  return {at<const int64_t>(src), at<const int64_t>(dst), at<const int64_t>(t), at<const int64_t>(label),
          size};
}

void bind_log(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<EventLog>(m, "EventLog")
      .def(py::init<>())
      .def("__len__", &EventLog::size)
      .def_property_readonly("num_nodes", &EventLog::num_nodes)
      .def_property_readonly("has_label", &EventLog::has_label)
      .def(
          "append",
          [](EventLog& log, address_t src, address_t dst, address_t t, address_t label, int64_t size) {
            const tgflow::Events events = events_at(src, dst, t, label, size);
            log.check(events);
            return log.append(events);
          },
          py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"), py::arg("size"), no_gil)
      .def_property_readonly("clock", &EventLog::clock)
      .def("position", &EventLog::position, py::arg("t"), no_gil)
      .def(
          "check_eids",
          [](const EventLog& log, address_t eid, int64_t size) {
            log.check_eids(at<const int64_t>(eid), size);
          },
          py::arg("eid"), py::arg("size"), no_gil)
      .def(
          "columns",
          [](const py::object& self, int64_t start, int64_t stop) {
            const EventLog& log = self.cast<const EventLog&>();
            py::object label = py::none();
            if (log.has_label()) label = column(self, log.label(), start, stop);
            return py::make_tuple(column(self, log.src(), start, stop), column(self, log.dst(), start, stop),
                                  column(self, log.t(), start, stop), label);
          },
          py::arg("start"), py::arg("stop"))
      .def(
          "gather",
          [](const EventLog& log, address_t eid, int64_t size, address_t src, address_t dst, address_t t,
             address_t label) {
            log.gather(at<const int64_t>(eid), size, at<int64_t>(src), at<int64_t>(dst), at<int64_t>(t),
                       at<int64_t>(label));
          },
          py::arg("eid"), py::arg("size"), py::arg("src"), py::arg("dst"), py::arg("t"), py::arg("label"),
          no_gil);
}
