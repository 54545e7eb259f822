#include <tuple>

#include "bindings.hpp"
#include "tgflow/reuse_map.hpp"

namespace bindings::reuse_map {

using tgflow::ReuseMap;
using no_gil = py::call_guard<py::gil_scoped_release>;

ReuseMap* new_map(int64_t capacity) {
  check_number("capacity", capacity, 1, int64_t{1} << 30);
  return new ReuseMap(capacity);
}

std::tuple<int64_t, int64_t, int64_t, int64_t> decide(ReuseMap& map, int64_t batch, const TensorArg& nodes,
                                                      const TensorArg& t, const TensorArg& may_recur,
                                                      int64_t staleness, double refresh, uint64_t key,
                                                      const TensorArg& order, const TensorArg& slot) {
  const auto node = nodes.vector<const int64_t>("nodes");
  const auto counts = map.decide(batch,
                                 {node.size, node.data, t.data<const int64_t>("t", {node.size}),
                                  may_recur.data<const bool>("may_recur", {node.size})},
                                 {staleness, refresh, key}, order.data<int64_t>("order", {node.size}),
                                 slot.data<int64_t>("slot", {node.size}));
  return {counts.num_refreshed, counts.num_stored, counts.num_computed, counts.largest_lag};
}

void insert(ReuseMap& map, int64_t batch, int64_t oldest, const TensorArg& nodes, const TensorArg& t,
            const TensorArg& slot) {
  const auto node = nodes.vector<const int64_t>("nodes");
  map.insert(batch, oldest, {node.size, node.data, t.data<const int64_t>("t", {node.size})},
             slot.data<int64_t>("slot", {node.size}));
}

void restore(ReuseMap& map, const TensorArg& batch, const TensorArg& nodes, const TensorArg& t,
             const TensorArg& slot) {
  const auto slots = slot.vector<const int64_t>("slot");
  check_range("slot", slots, 0, map.capacity());
  map.restore({slots.size, batch.data<const int64_t>("batch", {slots.size}),
               nodes.data<const int64_t>("nodes", {slots.size}), t.data<const int64_t>("t", {slots.size}),
               slots.data});
}

}  // namespace bindings::reuse_map

void bind_reuse_map(py::module_& m) {
  using namespace bindings::reuse_map;
  py::class_<ReuseMap>(m, "ReuseMap")
      .def(py::init(&new_map), py::arg("capacity"))
      .def("__len__", &ReuseMap::size)
      .def_property_readonly("bytes", &ReuseMap::bytes)
      .def_readonly_static("SLOT_BYTES", &ReuseMap::kSlotBytes)
      .def("decide", &decide, py::arg("batch"), py::arg("nodes"), py::arg("t"), py::arg("may_recur"),
           py::arg("staleness"), py::arg("refresh"), py::arg("key"), py::arg("order"), py::arg("slot"),
           no_gil())
      .def("insert", &insert, py::arg("batch"), py::arg("oldest"), py::arg("nodes"), py::arg("t"),
           py::arg("slot"), no_gil())
      .def("restore", &restore, py::arg("batch"), py::arg("nodes"), py::arg("t"), py::arg("slot"), no_gil())
      .def("clear", &ReuseMap::clear, no_gil());
}
