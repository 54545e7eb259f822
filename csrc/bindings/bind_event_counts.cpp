#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "tgflow/event_counts.hpp"

namespace bindings::event_counts {

using tgflow::Clock;
using tgflow::CountOf;
using tgflow::EventCounts;
using tgflow::EventLog;
using tgflow::Formula;
using tgflow::Op;
using no_gil = py::call_guard<py::gil_scoped_release>;

/// Kind of count, depth, half-life or 0, and its unit.
using CountArg = std::tuple<CountOf, int64_t, double, Clock>;

constexpr int64_t kMostLast = 1 << 20;  // most last events of a list

/// Operation, three operands and a constant.
using StepArg = std::tuple<Op, int64_t, int64_t, int64_t, double>;

EventCounts* new_counts(const EventLog& log, const std::vector<CountArg>& counts,
                        const std::vector<StepArg>& steps, const std::vector<int64_t>& results,
                        bool finds_latest, int64_t max_keys) {
  std::vector<tgflow::Count> checked;
  for (const auto& [of, depth, half_life, clock] : counts) {
    check_number("of", static_cast<int64_t>(of), 0, static_cast<int64_t>(CountOf::kAll));
    check_number("depth", depth, 1, of == CountOf::kCovisit ? EventCounts::kMaxRank : EventCounts::kMaxDepth);
    check_number("clock", static_cast<int64_t>(clock), 0, static_cast<int64_t>(Clock::kSource));
    if (!(half_life >= 0) || std::isinf(half_life)) {
      throw py::value_error("half_life must be finite and at least 0, got " + std::to_string(half_life));
    }
    checked.push_back({of, static_cast<int>(depth), {half_life, clock}});
  }
  std::vector<tgflow::Step> checked_steps;
  for (const auto& [op, a, b, c, constant] : steps) {
    check_number("op", static_cast<int64_t>(op), 0, static_cast<int64_t>(Op::kLog2));
    checked_steps.push_back({op, {a, b, c}, constant});
  }
  check_number("max_keys", max_keys, 0, EventCounts::kMaxKeys);
  return new EventCounts(log, std::move(checked), Formula(std::move(checked_steps), results), finds_latest,
                         max_keys);
}

void read_upto(EventCounts& counts, int64_t position) {
  check_number("position", position, 0, tgflow::kMaxEvents);
  counts.read_upto(position);
}

void check_nodes(const char* name, const int64_t* nodes, int64_t size) {
  check_range(name, {nodes, size}, 0, tgflow::kMaxNode + 1);
}

void answer(const EventCounts& counts, const TensorArg& src, const TensorArg& dst,
            const OptionalTensor& negative_src, const TensorArg& negative_dst, const TensorArg& t,
            const TensorArg& limit, const TensorArg& out, const OptionalTensor& relation) {
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  const auto* targets = negative_dst.data<const int64_t>("negative_dst", {size, "m"});
  const int64_t m = negative_dst.length(1);
  const EventCounts::Pairs pairs{sources.data,
                                 dst.data<const int64_t>("dst", {size}),
                                 data_or_null<const int64_t>(negative_src, "negative_src", {size, m}),
                                 targets,
                                 t.data<const int64_t>("t", {size}),
                                 limit.data<const int64_t>("limit", {size}),
                                 data_or_null<const int64_t>(relation, "relation", {size}),
                                 size,
                                 m};
  check_nodes("src", pairs.src, size);
  check_nodes("dst", pairs.dst, size);
  check_nodes("negative_dst", targets, product(size, m));
  if (pairs.negative_src != nullptr) check_nodes("negative_src", pairs.negative_src, size * m);
  check_range("limit", {pairs.limit, size}, 0, counts.size() + 1);
  if (pairs.relation != nullptr) check_range("relation", {pairs.relation, size}, 0, tgflow::kNumRelations);
  counts.answer(pairs, out.data<double>("out", {size, m + 1, counts.width()}));
}

void last_events(const EventCounts& counts, const TensorArg& src, const TensorArg& dst, const TensorArg& cut,
                 const TensorArg& out) {
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  const auto* targets = dst.data<const int64_t>("dst", {size});
  const auto* cuts = cut.data<const int64_t>("cut", {size});
  auto* rows = out.data<int64_t>("out", {size, EventCounts::kLasts, "most"});
  check_nodes("src", sources.data, size);
  check_nodes("dst", targets, size);
  check_range("cut", {cuts, size}, 0, counts.size() + 1);
  check_number("most", out.length(2), 0, kMostLast);
  counts.last_events(sources.data, targets, cuts, size, static_cast<int>(out.length(2)), rows);
}

void latest_destinations(const EventCounts& counts, const TensorArg& src, const TensorArg& cut,
                         const TensorArg& of_source, const TensorArg& of_all) {
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  const auto* cuts = cut.data<const int64_t>("cut", {size});
  auto* own = of_source.data<int64_t>("of_source", {size, "num_source"});
  auto* others = of_all.data<int64_t>("of_all", {size, "num_all"});
  check_nodes("src", sources.data, size);
  check_range("cut", {cuts, size}, 0, counts.size() + 1);
  check_number("num_source", of_source.length(1), 0, kMostLast);
  check_number("num_all", of_all.length(1), 0, kMostLast);
  counts.latest_destinations(sources.data, cuts, size, static_cast<int>(of_source.length(1)),
                             static_cast<int>(of_all.length(1)), own, others);
}

}  // namespace bindings::event_counts

void bind_event_counts(py::module_& m) {
  using namespace bindings::event_counts;
  py::enum_<CountOf>(m, "CountOf")
      .value("pair", CountOf::kPair)
      .value("reverse", CountOf::kReverse)
      .value("src", CountOf::kSrc)
      .value("dst", CountOf::kDst)
      .value("src_as_dst", CountOf::kSrcAsDst)
      .value("dst_as_src", CountOf::kDstAsSrc)
      .value("transition", CountOf::kTransition)
      .value("transition_row", CountOf::kTransitionRow)
      .value("window", CountOf::kWindow)
      .value("window_row", CountOf::kWindowRow)
      .value("continuation", CountOf::kContinuation)
      .value("continuation_all", CountOf::kContinuationAll)
      .value("src_new", CountOf::kSrcNew)
      .value("dst_new", CountOf::kDstNew)
      .value("dst_first", CountOf::kDstFirst)
      .value("src_switch", CountOf::kSrcSwitch)
      .value("dst_switch", CountOf::kDstSwitch)
      .value("own_transition", CountOf::kOwnTransition)
      .value("covisit", CountOf::kCovisit)
      .value("pair_relation", CountOf::kPairRelation)
      .value("src_relation", CountOf::kSrcRelation)
      .value("dst_relation", CountOf::kDstRelation)
      .value("relation", CountOf::kRelation)
      .value("all", CountOf::kAll);
  py::enum_<Clock>(m, "Clock")
      .value("seconds", Clock::kTicks)
      .value("events", Clock::kEvents)
      .value("source", Clock::kSource);
  py::enum_<Op>(m, "Op")
      .value("num", Op::kNum)
      .value("age", Op::kAge)
      .value("decayed", Op::kDecayed)
      .value("rank", Op::kRank)
      .value("since", Op::kSince)
      .value("loop", Op::kLoop)
      .value("constant", Op::kConstant)
      .value("add", Op::kAdd)
      .value("subtract", Op::kSubtract)
      .value("multiply", Op::kMultiply)
      .value("divide", Op::kDivide)
      .value("minimum", Op::kMinimum)
      .value("maximum", Op::kMaximum)
      .value("at_least", Op::kAtLeast)
      .value("where", Op::kWhere)
      .value("exp", Op::kExp)
      .value("log", Op::kLog)
      .value("log1p", Op::kLog1p)
      .value("log2", Op::kLog2);
  py::class_<EventCounts>(m, "EventCounts")
      .def(py::init(&new_counts), py::arg("log"), py::arg("counts"), py::arg("steps"), py::arg("results"),
           py::arg("finds_latest") = false, py::arg("max_keys") = EventCounts::kMaxKeys,
           py::keep_alive<1, 2>())
      .def("__len__", &EventCounts::size)
      .def_property_readonly("bytes", &EventCounts::bytes)
      .def("read_upto", &read_upto, py::arg("position"), no_gil())
      .def("answer", &answer, py::arg("src"), py::arg("dst"), py::arg("negative_src"),
           py::arg("negative_dst"), py::arg("t"), py::arg("limit"), py::arg("out"),
           py::arg("relation") = std::nullopt, no_gil())
      .def("latest_destinations", &latest_destinations, py::arg("src"), py::arg("cut"), py::arg("of_source"),
           py::arg("of_all"), no_gil())
      .def("last_events", &last_events, py::arg("src"), py::arg("dst"), py::arg("cut"), py::arg("out"),
           no_gil());
}
