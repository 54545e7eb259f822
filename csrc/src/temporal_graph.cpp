#include "tgflow/temporal_graph.hpp"

#include <stdexcept>
#include <string>

namespace tgflow {
namespace {

void add_edits(std::vector<NodeEdit>& edits, node_t src, node_t dst, tick_t t, eid_t eid, bool mutual) {
  edits.push_back({src, {t, eid, dst}});
  if (mutual && src != dst) edits.push_back({dst, {t, eid, src}});
}

}  // namespace

void TemporalGraph::check(const Events& events, bool may_be_late) {
  const std::lock_guard<std::mutex> lock(writer_);
  log_.check(events, may_be_late);
  store_.check(events);
}

eid_t TemporalGraph::append(const Events& events, bool may_be_late) {
  const std::lock_guard<std::mutex> lock(writer_);
  log_.stage(events, may_be_late);
  store_.check(events);
  if (events.size > 0 && events.t[0] < log_.clock()) return append_late(events);
  store_.reserve(events, log_.size());
  try {
    log_.publish();
  } catch (...) {
    store_.abandon();
    throw;
  }
  store_.commit();
  return log_.size() - events.size;
}

Largest TemporalGraph::stage(const Events& events, bool may_be_late, int64_t* rows) {
  const std::lock_guard<std::mutex> lock(writer_);
  const Largest largest = log_.stage(events, may_be_late, rows);
  store_.check(events);
  return largest;
}

eid_t TemporalGraph::record() {
  const std::lock_guard<std::mutex> lock(writer_);
  const Events events = log_.staged();
  const eid_t first_eid = log_.size();
  store_.reserve_notes(events, first_eid);
  log_.publish();
  store_.note(events, first_eid);
  return first_eid;
}

eid_t TemporalGraph::append_late(const Events& events) {
  const eid_t first_eid = log_.size();
  std::vector<NodeEdit> edits;
  for (int64_t i = 0; i < events.size; ++i) {
    add_edits(edits, events.src[i], events.dst[i], events.t[i], first_eid + i, is_mutual());
  }
  store_.reserve_notes(events, first_eid);
  store_.reserve_edits(std::move(edits), true);
  try {
    log_.publish();
  } catch (...) {
    store_.abandon_change();
    throw;
  }
  store_.note(events, first_eid);
  store_.commit_change(first_eid + events.size);
  return first_eid;
}

int64_t TemporalGraph::remove(const eid_t* eid, int64_t size) {
  const std::lock_guard<std::mutex> lock(writer_);
  log_.check_eids(eid, size);
  return remove_all({eid, eid + size});
}

int64_t TemporalGraph::remove_all(const std::vector<eid_t>& eids) {
  std::vector<NodeEdit> edits;
  for (const eid_t e : eids) add_edits(edits, log_.src()[e], log_.dst()[e], log_.t()[e], e, is_mutual());
  const int64_t difference = store_.reserve_edits(std::move(edits), false);
  store_.commit_change(store_.position());
  return -difference;
}

int64_t TemporalGraph::remove_pair(node_t src, node_t dst) {
  const std::lock_guard<std::mutex> lock(writer_);
  std::vector<eid_t> eids;
  find_events(src, dst, eids);
  if (is_mutual()) find_events(dst, src, eids);  // `dst` may still have what was removed from `src`
  return remove_all(eids);
}

/// Adds the events that make `nbr` a neighbor of `v`.
void TemporalGraph::find_events(node_t v, node_t nbr, std::vector<eid_t>& eids) {
  const StoreView store = store_.view();
  const Directory* dir = store.latest(v);
  for (uint32_t b = 0; dir != nullptr && b < dir->num_blocks; ++b) {
    const Block& block = dir->blocks()[b];
    const Entry* entries = store.entries(block);
    for (int64_t i = 0; i < size_of_block(*dir, b); ++i) {
      if (entries[i].nbr == static_cast<uint64_t>(nbr))
        eids.push_back(block.base_eid + entries[i].eid_offset);
    }
  }
}

int64_t TemporalGraph::retain(tick_t min_t, int64_t max_count) {
  const std::lock_guard<std::mutex> lock(writer_);
  const int64_t difference = store_.reserve_retention(min_t, max_count);
  store_.commit_change(store_.position());
  return -difference;
}

void TemporalGraph::compact() {
  const std::lock_guard<std::mutex> lock(writer_);
  store_.compact();
}

void TemporalGraph::forget(eid_t first, eid_t log_first) {
  const std::lock_guard<std::mutex> lock(writer_);
  if (log_first < log_.first() || first < log_first || first > log_.size()) {
    throw std::out_of_range("event " + std::to_string(first) + " is not in the log");
  }
  const tick_t t = log_.since(first).t;
  store_.reserve_retention(t, INT64_MAX);
  store_.commit_change(store_.position());
  store_.compact();
  store_.forget_relations(log_.position(t));
  log_.forget(log_first, first);
  store_.renew_sides({log_.src() + first, log_.dst() + first, nullptr, nullptr, log_.size() - first});
}

StoreStats TemporalGraph::stats() {
  const std::lock_guard<std::mutex> lock(writer_);
  return store_.stats();
}

}  // namespace tgflow
