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
  store_.reserve(events, log_.size());
  try {
    log_.append(events);
  } catch (...) {
    store_.abandon();
    throw;
  }
  store_.commit();
  return store_.position() - events.size;
}

StoreStats TemporalGraph::stats() {
  const std::lock_guard<std::mutex> lock(writer_);
  return store_.stats();
}

}  // namespace tgflow
