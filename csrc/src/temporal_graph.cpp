#include "tgflow/temporal_graph.hpp"

namespace tgflow {

void TemporalGraph::check(const Events& events) {
  const std::lock_guard<std::mutex> lock(writer_);
  log_.check(events);
  store_.check(events);
}

eid_t TemporalGraph::append(const Events& events) {
  const std::lock_guard<std::mutex> lock(writer_);
  log_.check(events);
  store_.check(events);
  const eid_t first_eid = log_.append(events);
  store_.insert(events, first_eid);
  return first_eid;
}

StoreStats TemporalGraph::stats() {
  const std::lock_guard<std::mutex> lock(writer_);
  return store_.stats();
}

}  // namespace tgflow
