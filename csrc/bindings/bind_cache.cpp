#include <pybind11/numpy.h>

#include <algorithm>
#include <tuple>

#include "bindings.hpp"
#include "tgflow/belady.hpp"
#include "tgflow/reuse_map.hpp"
#include "tgflow/row_cache.hpp"

namespace bindings::cache {

using tgflow::CacheLookup;
using tgflow::CachePolicy;
using tgflow::RowCache;
using Cache = std::shared_ptr<RowCache>;

/// A pending lookup and its cache: its slots are meaningless for any other cache.
struct Lookup {
  CacheLookup lookup;
  Cache cache;
};

Cache make(CachePolicy policy, int64_t capacity, int64_t row_bytes) {
  check_number("row_bytes", row_bytes, 1);
  product(std::max<int64_t>(capacity, 0), row_bytes);
  return std::make_shared<RowCache>(policy, capacity, row_bytes);
}

Lookup look_up(const Cache& cache, const TensorArg& id, int64_t size) {
  const auto ids = id.elements<const int64_t>("id");
  return {cache->look_up(ids.data, ids.size, size), cache};
}

Lookup preload(const Cache& cache, const TensorArg& id, int64_t size) {
  const auto ids = id.elements<const int64_t>("id");
  return {cache->preload(ids.data, ids.size, size), cache};
}

Lookup apply(const Cache& cache, const TensorArg& planned, const TensorArg& hit, const TensorArg& admit,
             const TensorArg& id, int64_t size) {
  const auto schedule = planned.vector<const int64_t>("planned");
  const tgflow::CacheSchedule moves{schedule.data, hit.data<const int32_t>("hit", {schedule.size}),
                                    admit.data<const int32_t>("admit", {schedule.size}), schedule.size};
  const auto ids = id.elements<const int64_t>("id");
  return {cache->apply(moves, ids.data, ids.size, size), cache};
}

Lookup restore(const Cache& cache, const TensorArg& id, const TensorArg& key, int64_t size) {
  const auto* ids = id.data<const int64_t>("id", {cache->capacity()});
  const auto* keys = key.data<const int64_t>("key", {cache->capacity()});
  check_range("id", {ids, cache->capacity()}, -1, INT64_MAX);
  check_range("key", {keys, cache->capacity()}, 0, INT64_MAX);
  return {cache->restore(ids, keys, size), cache};
}

void snapshot(const Cache& cache, const TensorArg& id, const TensorArg& key) {
  cache->snapshot(id.data<int64_t>("id", {cache->capacity()}), key.data<int64_t>("key", {cache->capacity()}));
}

void finish(const Cache& cache, Lookup& started, const TensorArg& rows, const OptionalTensor& out) {
  if (started.cache != cache) {
    throw std::invalid_argument("lookup is not under way at this cache; look up first");
  }
  const CacheLookup& lookup = started.lookup;
  const auto num_misses = static_cast<int64_t>(lookup.miss.size());
  const auto num_rows = static_cast<int64_t>(lookup.source.size());
  if (num_rows > 0 && !out) throw std::invalid_argument("out must be given for what was looked up, got None");
  char* const to = out ? out->bytes<char>("out", product(num_rows, cache->row_bytes())) : nullptr;
  cache->finish(lookup, rows.bytes<const char>("rows", product(num_misses, cache->row_bytes())), to);
  started.cache.reset();
}

void append(const Cache& cache, int64_t first, const TensorArg& rows) {
  const auto held = rows.rows<const char>("rows", cache->row_bytes());
  check_number("first", first, 0, INT64_MAX - held.size);
  cache->append(first, held.size, held.data);
}

py::array_t<int64_t> misses(const Lookup& started) {
  const std::vector<int64_t>& miss = started.lookup.miss;
  return py::array_t<int64_t>(static_cast<py::ssize_t>(miss.size()), miss.data());
}

/// The fields of `CacheCounters` of tgflow/graph/cache/contents.py, in order.
std::vector<int64_t> counts(const RowCache& cache) {
  const tgflow::CacheCounts found = cache.counts();
  return {found.hits,     found.misses,    found.admitted, found.evicted,
          found.bypassed, found.preloaded, found.written};
}

void bind_parts(py::module_& m) {
  py::enum_<CachePolicy>(m, "CachePolicy")
      .value("lru", CachePolicy::kLru)
      .value("lfu", CachePolicy::kLfu)
      .value("fifo", CachePolicy::kFifo)
      .value("static", CachePolicy::kStatic)
      .value("belady", CachePolicy::kGiven);
  py::class_<Lookup>(m, "CacheLookup").def_property_readonly("misses", &misses);
  py::register_exception<tgflow::ScheduleMismatch>(m, "ScheduleMismatch", PyExc_RuntimeError);
}

using tgflow::Belady;

std::unique_ptr<Belady> make_planner(int64_t num_slots, const OptionalTensor& contents) {
  return std::make_unique<Belady>(num_slots, data_or_null<const int64_t>(contents, "contents", {num_slots}));
}

void observe(Belady& planner, const TensorArg& id) {
  const auto ids = id.vector<const int64_t>("id");
  planner.observe(ids.data, ids.size);
}

int64_t next_size(const Belady& planner) {
  if (planner.num_batches() == 0) throw std::out_of_range("no batch waits to be planned; observe one first");
  return planner.next_size();
}

void plan_next(Belady& planner, const TensorArg& id, const TensorArg& hit, const TensorArg& admit) {
  const int64_t size = next_size(planner);
  planner.plan_next({id.data<int64_t>("id", {size}), hit.data<int32_t>("hit", {size}),
                     admit.data<int32_t>("admit", {size})});
}

void contents(const Belady& planner, const TensorArg& id) {
  planner.contents(id.data<int64_t>("id", {planner.num_slots()}));
}

using tgflow::ReuseMap;

ReuseMap* new_map(int64_t capacity) {
  check_number("capacity", capacity, 1, int64_t{1} << 30);
  return new ReuseMap(capacity);
}

std::tuple<int64_t, int64_t, int64_t, int64_t> decide(ReuseMap& map, int64_t batch, const TensorArg& nodes,
                                                      const TensorArg& t, const TensorArg& may_recur,
                                                      int64_t staleness, double refresh, uint64_t key,
                                                      double seconds_per_tick, const TensorArg& order,
                                                      const TensorArg& slot) {
  const auto node = nodes.vector<const int64_t>("nodes");
  const auto counts =
      map.decide(batch,
                 {node.size, node.data, t.data<const int64_t>("t", {node.size}),
                  may_recur.data<const bool>("may_recur", {node.size})},
                 {staleness, refresh, key, checked_tick(seconds_per_tick)},
                 order.data<int64_t>("order", {node.size}), slot.data<int64_t>("slot", {node.size}));
  return {counts.num_refreshed, counts.num_stored, counts.num_computed, counts.largest_lag};
}

void restore_map(ReuseMap& map, const TensorArg& batch, const TensorArg& nodes, const TensorArg& t,
                 const TensorArg& slot) {
  const auto slots = slot.vector<const int64_t>("slot");
  check_range("slot", slots, 0, map.capacity());
  map.restore({slots.size, batch.data<const int64_t>("batch", {slots.size}),
               nodes.data<const int64_t>("nodes", {slots.size}), t.data<const int64_t>("t", {slots.size}),
               slots.data});
}

}  // namespace bindings::cache

void bind_cache(py::module_& m) {
  using namespace bindings::cache;
  bind_parts(m);
  py::class_<RowCache, Cache>(m, "RowCache")
      .def(py::init(&make), "policy"_a, "capacity"_a, "row_bytes"_a)
      .def("look_up", &look_up, "id"_a, "size"_a, no_gil())
      .def("preload", &preload, "id"_a, "size"_a, no_gil())
      .def("apply", &apply, "planned"_a, "hit"_a, "admit"_a, "id"_a, "size"_a, no_gil())
      .def("append", &append, "first"_a, "rows"_a, no_gil())
      .def("restore", &restore, "id"_a, "key"_a, "size"_a, no_gil())
      .def("snapshot", &snapshot, "id"_a, "key"_a, no_gil())
      .def("finish", &finish, "lookup"_a, "rows"_a, "out"_a, no_gil())
      .def("truncate", &RowCache::truncate, "size"_a, no_gil())
      .def("counts", &counts, no_gil())
      .def("reset_counts", &RowCache::reset_counts, no_gil())
      .def("bytes", &RowCache::bytes, no_gil());
  py::class_<Belady>(m, "Belady")
      .def(py::init(&make_planner), "num_slots"_a, "contents"_a, no_gil())
      .def_property_readonly("num_slots", &Belady::num_slots)
      .def_property_readonly("num_batches", &Belady::num_batches)
      .def_property_readonly("num_accesses", &Belady::num_accesses)
      .def_property_readonly("next_size", &next_size)
      .def_property_readonly("bytes", &Belady::bytes)
      .def("observe", &observe, "id"_a, no_gil())
      .def("plan_next", &plan_next, "id"_a, "hit"_a, "admit"_a, no_gil())
      .def("contents", &contents, "id"_a, no_gil());
  py::class_<ReuseMap>(m, "ReuseMap")
      .def(py::init(&new_map), "capacity"_a)
      .def("__len__", &ReuseMap::size)
      .def_property_readonly("bytes", &ReuseMap::bytes)
      .def_readonly_static("SLOT_BYTES", &ReuseMap::kSlotBytes)
      .def("decide", &decide, "batch"_a, "nodes"_a, "t"_a, "may_recur"_a, "staleness"_a, "refresh"_a, "key"_a,
           "seconds_per_tick"_a, "order"_a, "slot"_a, no_gil())
      .def("restore", &restore_map, "batch"_a, "nodes"_a, "t"_a, "slot"_a, no_gil())
      .def("clear", &ReuseMap::clear, no_gil());
}
