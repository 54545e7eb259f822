// Whole batches by one call: events, negatives, neighborhoods and features, in one slab.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tgflow/event_counts.hpp"
#include "tgflow/gather.hpp"
#include "tgflow/pair_index.hpp"
#include "tgflow/sampling.hpp"
#include "tgflow/slab.hpp"
#include "tgflow/temporal_graph.hpp"

namespace tgflow {

/// Settings of all batches of a plan; see tgflow/plan/plan.py and tgflow/plan/negatives.py.
struct BatchRules {
  eid_t start = 0;  ///< Log position of batch 0.
  int64_t batch_size = 1;
  std::vector<int64_t> fanouts;
  Sampler sampler;
  bool sees_all_before = false;  ///< Whether a query also sees earlier events of its own batch.
  bool with_memory = false;
  bool with_nodes = true;  ///< Whether nodes get rows; else there are no fanouts and no frontier.
  double seconds_per_tick = 1;
  int64_t num_negatives = 1;
  int64_t every = 1;         ///< One of this many events has all negatives, the others have the first.
  bool draws_pairs = false;  ///< Whether negatives have sources of their own.
  eid_t cut = -1;            ///< Negatives were seen before it; -1: the start of their event's batch.
  eid_t pairs_from = 0;
  bool collide = false;
  bool replace = true;
  double half_life = 1;           ///< Of replay, in events.
  bool has_float_counts = false;  ///< Whether counts are rounded to float, else they are double.
};

/// Features that a batch reads of a table, and whether their rows or only their ids are written.
struct BatchTable {
  bool is_read = false;
  const RowTable* rows = nullptr;  ///< Null: the ids are written instead of the rows.
};

/// Negatives that are given instead of drawn.
struct GivenNegatives {
  const node_t* dst = nullptr;   ///< [events, negatives], of new and replayed events; null: they are drawn.
  const node_t* src = nullptr;   ///< The same, or null: the events' own.
  const float* log_q = nullptr;  ///< The same, or null: they have none.
};

/// One batch of a plan.
struct BatchRequest {
  uint64_t key = 0;      ///< Of the batch's draws,
  uint64_t hop_key = 0;  ///< and of those of its neighbors: that of the slice, or the same.
  GivenNegatives negatives;
  bool is_drawn_only = false;  ///< Without neighbors and features: the queries instead.
  bool with_counts = true;
  eid_t begin = 0;  ///< The new events are [begin, end) of the log,
  eid_t end = 0;
  Since since{};                ///< The horizon of its queries.
  const eid_t* only = nullptr;  ///< or these of them,
  int64_t num_only = 0;
  eid_t replay_begin = 0;  ///< and up to `num_replay` of [replay_begin, begin).
  int64_t num_replay = 0;
  BatchTable edge_x;
  BatchTable node_x;
  node_t node_end = kEveryEvent;  ///< The first node without a row in `node_x`.
  bool is_padded = false;         ///< Whether frontiers and tables are padded to a size that recurs.
  const int64_t* rows = nullptr;  ///< Only these rows of the batch, ascending,
  int64_t num_rows = -1;          ///< or all of them if -1.
};

/// Offsets of a batch's parts in its slab, in bytes, and their lengths; -1: no such part.
struct BatchLayout {
  struct Block {
    int64_t targets;  ///< Rows, padding included.
    int64_t target, neighbor, mask, dt, eid, edge_row;
  };
  int64_t num_whole, whole_eid, whole_t, whole_ends;  ///< All events; those below if all are asked for.
  int64_t num_events, num_new, num_queries, num_fallbacks;
  int64_t eid, t, ends, row = -1, counts = -1;
  std::vector<Block> blocks;
  int64_t num_nodes, nodes, position;
  int64_t num_edges = 0, num_in_blocks = 0;  ///< Rows of the edge table, and the number that blocks read.
  int64_t own_row = -1, edge_ids = -1, edge_x = -1, x = -1;
  int64_t node_ids = -1, node_x = -1;
  int64_t mask = -1;   ///< [events of the whole batch, negatives]: the drawn ones; -1: all are.
  int64_t log_q = -1;  ///< Of given negatives.
  /// Of a batch that is only drawn: time and position of each query, and int64 words: begin, the tick at
  /// which the horizon begins, and five of each hop, see tgflow/graph/query.py.
  int64_t query_t = -1, query_position = -1, words = -1;
};

/// The size that a number of rows, at most 2^60, is padded to. See
/// BatchShape.rounded in tgflow/plan/padding.py.
int64_t padded_rows(int64_t rows);

/// Prepares the batches of a plan. Thread-safe.
class Preparer {
 public:
  /// `graph` may be null if batches are only drawn, and `counts`. All arguments must outlive it. Reads on in
  /// the log what `pairs` without types lack.
  Preparer(const EventLog& log, TemporalGraph* graph, PairIndex& pairs, EventCounts* counts,
           BatchRules rules);
  ~Preparer();

  const BatchRules& rules() const { return rules_; }
  const EventLog& log() const { return log_; }
  bool has_graph() const { return graph_ != nullptr; }

  /// Writes a batch to `slab`, which must be unused. The same bits on any thread. Throws std::out_of_range
  /// for an event that the log, or an id that a table does not hold, std::invalid_argument where an event has
  /// no negative, and std::length_error for too large a batch.
  BatchLayout prepare(const BatchRequest& request, Slab& slab);

 private:
  struct Workspace;
  class Preparation;

  const EventLog& log_;
  TemporalGraph* const graph_;
  PairIndex& pairs_;
  EventCounts* const counts_;
  const BatchRules rules_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;  // as many as prepared at once
};

}  // namespace tgflow
