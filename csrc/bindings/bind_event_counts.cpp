#include <cmath>
#include <numeric>
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
                        bool finds_latest, double seconds_per_tick, int64_t max_keys, int64_t first_part,
                        int64_t num_parts, int64_t first) {
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
  check_number("first_part", first_part, 0, tgflow::kParts - 1);
  check_number("num_parts", num_parts, 1, tgflow::kParts - first_part);
  check_number("first", first, log.first(), log.size());
  return new EventCounts(log, std::move(checked), Formula(std::move(checked_steps), results), finds_latest,
                         checked_tick(seconds_per_tick), max_keys, {first_part, tgflow::kParts - num_parts},
                         first);
}

void read_upto(EventCounts& counts, int64_t position) {
  check_number("position", position, 0, tgflow::kMaxEvents);
  counts.read_upto(position);
}

void check_nodes(const char* name, const int64_t* nodes, int64_t size) {
  check_range(name, {nodes, size}, 0, tgflow::kMaxNode + 1);
}

void check_since(const EventCounts& counts, int64_t since) {
  check_number("since", since, 0, counts.is_for_any_since() ? counts.size() : counts.first());
}

void answer(const EventCounts& counts, const TensorArg& src, const TensorArg& dst,
            const OptionalTensor& negative_src, const TensorArg& negative_dst, const TensorArg& t,
            const TensorArg& limit, const TensorArg& out, const OptionalTensor& relation, int64_t since) {
  check_since(counts, since);
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
                                 m,
                                 since};
  check_nodes("src", pairs.src, size);
  check_nodes("dst", pairs.dst, size);
  check_nodes("negative_dst", targets, product(size, m));
  if (pairs.negative_src != nullptr) check_nodes("negative_src", pairs.negative_src, size * m);
  check_range("limit", {pairs.limit, size}, 0, counts.size() + 1);
  if (pairs.relation != nullptr) check_range("relation", {pairs.relation, size}, 0, tgflow::kNumRelations);
  counts.answer(pairs, out.data<double>("out", {size, m + 1, counts.width()}));
}

/// Returns the number of events from those read to `end`.
int64_t num_read(const EventCounts& counts, int64_t end) {
  check_number("end", end, counts.size(), counts.log().size());
  return end - counts.size();
}

void read_sources(EventCounts& counts, int64_t end, const TensorArg& facts) {
  num_read(counts, end);
  counts.read_sources(end, facts.data<int32_t>("facts", {counts.num_own(end), counts.num_facts()}));
}

void read_others(EventCounts& counts, int64_t end, const TensorArg& facts, const TensorArg& is_new) {
  const int64_t num = num_read(counts, end);
  const auto* known = facts.data<const int32_t>("facts", {num, counts.num_facts()});
  counts.read_others(end, known, is_new.data<uint8_t>("is_new", {num}));
}

void read_continuations(EventCounts& counts, int64_t end, const TensorArg& is_new) {
  counts.read_continuations(end, is_new.data<const uint8_t>("is_new", {num_read(counts, end)}));
}

/// The columns of pairs: source, destination, time, limit and relation.
EventCounts::Rows rows_of(const EventCounts& counts, const TensorArg& rows) {
  const auto* columns = rows.data<const int64_t>("rows", {5, "n"});
  const int64_t n = rows.length(1);
  check_nodes("rows", columns, 2 * n);
  check_range("rows", {columns + 3 * n, n}, 0, counts.size() + 1);
  check_range("rows", {columns + 4 * n, n}, 0, tgflow::kNumRelations);
  return {columns, columns + n, columns + 2 * n, columns + 3 * n, columns + 4 * n, n};
}

void answer_sources(const EventCounts& counts, const TensorArg& rows, const TensorArg& found) {
  const EventCounts::Rows pairs = rows_of(counts, rows);
  counts.answer_sources(pairs, found.data<double>("found", {pairs.size, counts.num_found()}));
}

void find_keys(const EventCounts& counts, const TensorArg& rows, const TensorArg& found,
               const TensorArg& keys, const TensorArg& parts) {
  const EventCounts::Rows pairs = rows_of(counts, rows);
  const auto* known = found.data<const double>("found", {pairs.size, counts.num_found()});
  auto* out = keys.data<int64_t>("keys", {counts.num_keys(), pairs.size});
  counts.find_keys(pairs, known, reinterpret_cast<uint64_t*>(out),
                   parts.data<int64_t>("parts", {counts.num_keys(), pairs.size}));
}

void answer_keys(const EventCounts& counts, const TensorArg& num, const TensorArg& asked,
                 const TensorArg& out) {
  const auto* columns = asked.data<const int64_t>("asked", {3, "n"});
  const int64_t n = asked.length(1);
  const auto* of_lookup = num.data<const int64_t>("num", {counts.num_keys()});
  check_range("num", {of_lookup, counts.num_keys()}, 0, n + 1);
  check_number("the sum of num", std::accumulate(of_lookup, of_lookup + counts.num_keys(), int64_t{0}), n, n);
  check_range("asked", {columns + 2 * n, n}, 0, counts.size() + 1);
  counts.answer_keys(of_lookup, reinterpret_cast<const uint64_t*>(columns),
                     {nullptr, nullptr, columns + n, columns + 2 * n, nullptr, n},
                     out.data<double>("out", {n, counts.num_loads()}));
}

void evaluate(const EventCounts& counts, const TensorArg& rows, const TensorArg& found,
              const TensorArg& others, const TensorArg& out) {
  const EventCounts::Rows pairs = rows_of(counts, rows);
  const auto* known = found.data<const double>("found", {pairs.size, counts.num_found()});
  const auto* rest = others.data<const double>("others", {counts.num_keys(), pairs.size, counts.num_loads()});
  counts.evaluate(pairs, known, rest, out.data<double>("out", {pairs.size, counts.width()}));
}

void last_events(const EventCounts& counts, const TensorArg& src, const TensorArg& dst, const TensorArg& cut,
                 const TensorArg& out, int64_t since) {
  check_since(counts, since);
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  const auto* targets = dst.data<const int64_t>("dst", {size});
  const auto* cuts = cut.data<const int64_t>("cut", {size});
  auto* rows = out.data<int64_t>("out", {size, EventCounts::kLasts, "most"});
  check_nodes("src", sources.data, size);
  check_nodes("dst", targets, size);
  check_range("cut", {cuts, size}, 0, counts.size() + 1);
  check_number("most", out.length(2), 0, kMostLast);
  counts.last_events(sources.data, targets, since, cuts, size, static_cast<int>(out.length(2)), rows);
}

void latest_destinations(const EventCounts& counts, const TensorArg& src, const TensorArg& cut,
                         const TensorArg& of_source, const TensorArg& of_all, int64_t since) {
  check_since(counts, since);
  const auto sources = src.vector<const int64_t>("src");
  const int64_t size = sources.size;
  const auto* cuts = cut.data<const int64_t>("cut", {size});
  auto* own = of_source.data<int64_t>("of_source", {size, "num_source"});
  auto* others = of_all.data<int64_t>("of_all", {size, "num_all"});
  check_nodes("src", sources.data, size);
  check_range("cut", {cuts, size}, 0, counts.size() + 1);
  check_number("num_source", of_source.length(1), 0, kMostLast);
  check_number("num_all", of_all.length(1), 0, kMostLast);
  counts.latest_destinations(sources.data, since, cuts, size, static_cast<int>(of_source.length(1)),
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
      .value("seconds", Clock::kSeconds)
      .value("events", Clock::kEvents)
      .value("source", Clock::kSource);
  py::enum_<Op>(m, "Op")
      .value("num", Op::kNum)
      .value("age", Op::kAge)
      .value("decayed", Op::kDecayed)
      .value("rank", Op::kRank)
      .value("since", Op::kSince)
      .value("within", Op::kWithin)
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
      .def(py::init(&new_counts), "log"_a, "counts"_a, "steps"_a, "results"_a, "finds_latest"_a = false,
           "seconds_per_tick"_a = 1.0, "max_keys"_a = EventCounts::kMaxKeys, "first_part"_a = 0,
           "num_parts"_a = tgflow::kParts, "first"_a = 0, py::keep_alive<1, 2>())
      .def("__len__", &EventCounts::size)
      .def_property_readonly("first", &EventCounts::first)
      .def_property_readonly("is_for_any_since", &EventCounts::is_for_any_since)
      .def_property_readonly("bytes", &EventCounts::bytes)
      .def("read_upto", &read_upto, "position"_a, no_gil())
      .def("answer", &answer, "src"_a, "dst"_a, "negative_src"_a, "negative_dst"_a, "t"_a, "limit"_a, "out"_a,
           "relation"_a = std::nullopt, "since"_a = 0, no_gil())
      .def_property_readonly("num_facts", &EventCounts::num_facts)
      .def_property_readonly("continues", &EventCounts::continues)
      .def("read_sources", &read_sources, "end"_a, "facts"_a, no_gil())
      .def("read_others", &read_others, "end"_a, "facts"_a, "is_new"_a, no_gil())
      .def("read_continuations", &read_continuations, "end"_a, "is_new"_a, no_gil())
      .def_property_readonly("num_found", &EventCounts::num_found)
      .def_property_readonly("loads", &EventCounts::loads)
      .def("answer_sources", &answer_sources, "rows"_a, "found"_a, no_gil())
      .def("find_keys", &find_keys, "rows"_a, "found"_a, "keys"_a, "parts"_a, no_gil())
      .def("answer_keys", &answer_keys, "num"_a, "asked"_a, "out"_a, no_gil())
      .def("evaluate", &evaluate, "rows"_a, "found"_a, "others"_a, "out"_a, no_gil())
      .def("latest_destinations", &latest_destinations, "src"_a, "cut"_a, "of_source"_a, "of_all"_a,
           "since"_a = 0, no_gil())
      .def("last_events", &last_events, "src"_a, "dst"_a, "cut"_a, "out"_a, "since"_a = 0, no_gil());
}
