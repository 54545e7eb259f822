#include <pybind11/stl.h>

#include <vector>

#include "bindings.hpp"
#include "tgflow/frontier.hpp"
#include "tgflow/pair_index.hpp"
#include "tgflow/random.hpp"
#include "tgflow/replay.hpp"

namespace {

using tgflow::PairIndex;
using no_gil = py::call_guard<py::gil_scoped_release>;

void append(PairIndex& index, address_t src, address_t dst, int64_t size) {
  index.append(at<const tgflow::node_t>(src), at<const tgflow::node_t>(dst), size);
}

PairIndex::Request request(uint64_t key, address_t src, address_t dst, address_t cut, int64_t size,
                           int64_t num, int64_t limit, int64_t pairs_from) {
  return {key,       at<const int64_t>(src), at<const int64_t>(dst), at<const int64_t>(cut), size, num, limit,
          pairs_from};
}

int64_t draw_destinations(const PairIndex& index, const PairIndex::Request& q, address_t out_dst) {
  return index.draw_destinations(q, at<tgflow::node_t>(out_dst));
}

int64_t draw_pairs(const PairIndex& index, const PairIndex::Request& q, address_t out_src,
                   address_t out_dst) {
  return index.draw_pairs(q, at<tgflow::node_t>(out_src), at<tgflow::node_t>(out_dst));
}

tgflow::FrontierIn queries(address_t node, address_t t, address_t start, int64_t size) {
  return {at<const tgflow::node_t>(node), at<const tgflow::tick_t>(t), at<const int64_t>(start), size};
}

tgflow::FrontierOut queries_out(address_t node, address_t t, address_t start) {
  return {at<tgflow::node_t>(node), at<tgflow::tick_t>(t), at<int64_t>(start)};
}

int64_t unique_queries(const tgflow::FrontierIn& in, const tgflow::FrontierOut& out, address_t row) {
  return tgflow::unique_queries(in, out, at<int64_t>(row));
}

tgflow::NeighborsIn neighbors_in(address_t node, address_t t, int64_t k) {
  return {at<const tgflow::node_t>(node), at<const tgflow::tick_t>(t), k};
}

tgflow::BlockOut block_out(address_t target, address_t neighbor, address_t mask, address_t dt) {
  return {at<int64_t>(target), at<int64_t>(neighbor), at<bool>(mask), at<float>(dt)};
}

tgflow::EventList event_list(address_t eid, int64_t size, address_t row) {
  return {at<const tgflow::eid_t>(eid), size, at<int64_t>(row)};
}

std::vector<int64_t> unique_events(const std::vector<tgflow::EventList>& lists, address_t out) {
  return tgflow::unique_events(lists, at<tgflow::eid_t>(out));
}

int64_t draw_replay(int64_t begin, int64_t end, double half_life, uint64_t key, int64_t num, address_t out) {
  return tgflow::draw_replay({begin, end, half_life}, key, num, at<tgflow::eid_t>(out));
}

void bind_pair_index(py::module_& m) {
  py::class_<PairIndex::Request>(m, "NegativeRequest")
      .def(py::init(&request), py::arg("key"), py::arg("src"), py::arg("dst"), py::arg("cut"),
           py::arg("size"), py::arg("num"), py::arg("limit"), py::arg("pairs_from"));
  py::class_<PairIndex>(m, "PairIndex")
      .def(py::init<>())
      .def("__len__", &PairIndex::size)
      .def("append", &append, py::arg("src"), py::arg("dst"), py::arg("size"), no_gil())
      .def("num_destinations", &PairIndex::num_destinations, py::arg("before"))
      .def("num_pairs", &PairIndex::num_pairs, py::arg("before"))
      .def("draw_destinations", &draw_destinations, py::arg("request"), py::arg("out_dst"), no_gil())
      .def("draw_pairs", &draw_pairs, py::arg("request"), py::arg("out_src"), py::arg("out_dst"), no_gil());
}

void bind_frontier(py::module_& m) {
  py::class_<tgflow::FrontierIn>(m, "FrontierIn")
      .def(py::init(&queries), py::arg("node"), py::arg("t"), py::arg("start"), py::arg("size"));
  py::class_<tgflow::FrontierOut>(m, "FrontierOut")
      .def(py::init(&queries_out), py::arg("node"), py::arg("t"), py::arg("start"));
  py::class_<tgflow::NeighborsIn>(m, "NeighborsIn")
      .def(py::init(&neighbors_in), py::arg("node"), py::arg("t"), py::arg("k"));
  py::class_<tgflow::BlockOut>(m, "BlockOut")
      .def(py::init(&block_out), py::arg("target"), py::arg("neighbor"), py::arg("mask"), py::arg("dt"));
  m.def("unique_queries", &unique_queries, py::arg("queries"), py::arg("out"), py::arg("row"), no_gil());
  m.def("expand_frontier", &tgflow::expand_frontier, py::arg("targets"), py::arg("neighbors"),
        py::arg("seconds_per_tick"), py::arg("below"), py::arg("block"), no_gil());
  py::class_<tgflow::EventList>(m, "EventList")
      .def(py::init(&event_list), py::arg("eid"), py::arg("size"), py::arg("row"));
  m.def("unique_events", &unique_events, py::arg("lists"), py::arg("out"), no_gil());
}

}  // namespace

void bind_plan(py::module_& m) {
  bind_pair_index(m);
  bind_frontier(m);
  m.def("draw_replay", &draw_replay, py::arg("begin"), py::arg("end"), py::arg("half_life"), py::arg("key"),
        py::arg("num"), py::arg("out"), no_gil());
  m.def("mix64", &tgflow::mix64, py::arg("x"));
}
