#include <utility>

#include "bindings.hpp"
#include "tgflow/attention.hpp"
#include "tgflow/detail/version_ring.hpp"
#include "tgflow/dropout.hpp"
#include "tgflow/event_log.hpp"
#include "tgflow/matrix_product.hpp"

namespace bindings::layers {

using tgflow::Attention;
using tgflow::AttentionGradients;
using tgflow::AttentionOut;

/// Inputs of both passes; see tgflow/attention.hpp for their shapes.
struct Arguments {
  const TensorArg& query;
  const OptionalTensor& below;
  const TensorArg& neighbor;
  const OptionalTensor& edge_table;
  const OptionalTensor& edge_row;
  const TensorArg& mask;
  const TensorArg& dt;
  const TensorArg& frequency;
  const OptionalTensor& keep;
};

/// Raises IndexError if a slot with a neighbor has a row outside of the table.
void check_rows(const char* name, const int64_t* row, const bool* mask, int64_t num_slots, int64_t num_rows) {
  const auto* filled = reinterpret_cast<const unsigned char*>(mask);
  bool wrong = false;
  for (int64_t s = 0; s < num_slots; ++s) {
    wrong |= (filled[s] != 0) & (static_cast<uint64_t>(row[s]) >= static_cast<uint64_t>(num_rows));
  }
  if (!wrong) return;
  for (int64_t s = 0; s < num_slots; ++s) {
    if (filled[s] != 0) check_range(name, {row + s, 1}, 0, num_rows);
  }
}

/// Raises unless the widths of the parts, h_dim and x_dim, add up to the query's.
void check_widths(const Attention& a, int64_t query_width) {
  const int64_t width = a.h_dim + a.x_dim + a.time_dim;
  if (query_width == width) return;
  throw std::invalid_argument(
      "query has width " + std::to_string(query_width) + ", but a neighbor's inputs are " +
      std::to_string(width) + " wide: " + std::to_string(a.h_dim) + " of node states, " +
      std::to_string(a.x_dim) + " of edge features (edge_x) and " + std::to_string(a.time_dim) +
      " of the time encoding; build the model for the widths of its inputs");
}

Attention checked(const Arguments& in) {
  Attention a{};
  if (in.mask.dims() == 2) a.num_targets = in.mask.length(0), a.k = in.mask.length(1);
  a.mask = in.mask.data<const bool>("mask", {"N", "k"});
  const int64_t n = a.num_targets, num_slots = n * a.k;
  a.neighbor = in.neighbor.data<const int64_t>("neighbor", {n, a.k});
  a.dt = in.dt.data<const float>("dt", {n, a.k});
  const auto frequency = in.frequency.vector<const float>("frequency");
  a.frequency = frequency.data, a.time_dim = frequency.size;
  if (in.below) {
    a.below = in.below->data<const float>("below", {"F", "h_dim"});
    a.num_below = in.below->length(0), a.h_dim = in.below->length(1);
    check_rows("neighbor", a.neighbor, a.mask, num_slots, a.num_below);
  }
  if (in.edge_table) {
    a.edge_table = in.edge_table->data<const float>("edge_table", {"R", "x_dim"});
    a.num_edges = in.edge_table->length(0), a.x_dim = in.edge_table->length(1);
    if (!in.edge_row) throw std::invalid_argument("edge_row must come with edge_table, got None");
    a.edge_row = in.edge_row->data<const int64_t>("edge_row", {n, a.k});
    check_rows("edge_row", a.edge_row, a.mask, num_slots, a.num_edges);
  }
  a.query = in.query.data<const float>("query", {"H", "N or 1", "D"});
  a.num_heads = in.query.length(0);
  a.shared_query = in.query.length(1) == 1 && n != 1;
  if (!a.shared_query) in.query.data<const float>("query", {"H", n, "D"});
  check_widths(a, in.query.length(2));
  a.keep = data_or_null<const float>(in.keep, "keep", {a.num_heads, n, a.k});
  return a;
}

void attend(const TensorArg& query, const OptionalTensor& below, const TensorArg& neighbor,
            const OptionalTensor& edge_table, const OptionalTensor& edge_row, const TensorArg& mask,
            const TensorArg& dt, const TensorArg& frequency, const OptionalTensor& keep,
            const TensorArg& weight, const TensorArg& inputs, const TensorArg& total) {
  const Attention a = checked({query, below, neighbor, edge_table, edge_row, mask, dt, frequency, keep});
  const int64_t heads = a.num_heads, n = a.num_targets;
  tgflow::attend(a, AttentionOut{weight.data<float>("weight", {heads, n, a.k}),
                                 inputs.data<float>("inputs", {heads, n, query.length(2)}),
                                 total.data<float>("total", {heads, n})});
}

void attend_backward(const TensorArg& query, const OptionalTensor& below, const TensorArg& neighbor,
                     const OptionalTensor& edge_table, const OptionalTensor& edge_row, const TensorArg& mask,
                     const TensorArg& dt, const TensorArg& frequency, const OptionalTensor& keep,
                     const TensorArg& weight, const TensorArg& grad_inputs, const TensorArg& grad_total,
                     const TensorArg& grad_query, const OptionalTensor& grad_below) {
  const Attention a = checked({query, below, neighbor, edge_table, edge_row, mask, dt, frequency, keep});
  const int64_t heads = a.num_heads, n = a.num_targets, width = query.length(2);
  if (a.below != nullptr && !grad_below) {
    throw std::invalid_argument("grad_below must come with below, got None");
  }
  tgflow::attend_backward(
      a, AttentionGradients{weight.data<const float>("weight", {heads, n, a.k}),
                            grad_inputs.data<const float>("grad_inputs", {heads, n, width}),
                            grad_total.data<const float>("grad_total", {heads, n}),
                            grad_query.data<float>("grad_query", {heads, query.length(1), width}),
                            data_or_null<float>(grad_below, "grad_below", {a.num_below, a.h_dim})});
}

void attend_projected(const TensorArg& query_row, const TensorArg& query, const TensorArg& time_query,
                      const OptionalTensor& below, const TensorArg& neighbor, const OptionalTensor& edges,
                      const OptionalTensor& edge_row, const TensorArg& bias, const TensorArg& eid,
                      const TensorArg& mask, const TensorArg& dt, const TensorArg& frequency,
                      const TensorArg& time, const TensorArg& value) {
  tgflow::ProjectedAttention a{};
  a.mask = mask.data<const bool>("mask", {"N", "k"});
  const int64_t n = a.num_targets = mask.length(0), k = a.k = mask.length(1);
  check_number("the number of slots k", k, 1);
  a.eid = eid.data<const int64_t>("eid", {n, k});
  a.dt = dt.data<const float>("dt", {n, k});
  a.query = query.data<const float>("query", {"H", "Q", "key_dim"});
  a.num_heads = query.length(0), a.num_queries = query.length(1), a.key_dim = query.length(2);
  a.query_row = query_row.data<const int64_t>("query_row", {n});
  check_range("query_row", {a.query_row, n}, 0, a.num_queries);
  const auto frequencies = frequency.vector<const float>("frequency");
  a.frequency = frequencies.data, a.time_dim = frequencies.size;
  a.time_query = time_query.data<const float>("time_query", {a.num_heads, a.num_queries, a.time_dim});
  const auto biases = bias.vector<const float>("bias");
  a.bias = biases.data, a.value_dim = biases.size;
  const int64_t width = a.num_heads * (a.key_dim + a.value_dim);
  if (below) {
    a.below = below->data<const float>("below", {"F", width});
    a.neighbor = neighbor.data<const int64_t>("neighbor", {n, k});
    check_rows("neighbor", a.neighbor, a.mask, n * k, below->length(0));
  }
  if (edges) {
    a.edges = edges->data<const float>("edges", {"R", width});
    if (!edge_row) throw std::invalid_argument("edge_row must come with edges, got None");
    a.edge_row = edge_row->data<const int64_t>("edge_row", {n, k});
    check_rows("edge_row", a.edge_row, a.mask, n * k, edges->length(0));
  }
  tgflow::attend_projected(a, {time.data<float>("time", {n, a.num_heads * a.time_dim}),
                               value.data<float>("value", {n, a.value_dim})});
}

void check_rate(double rate) {
  if (!(rate >= 0 && rate < 1)) {
    throw std::invalid_argument("rate must be at least 0 and less than 1, got " + std::to_string(rate));
  }
}

void keep_factors(const TensorArg& key, double rate, const TensorArg& out) {
  check_rate(rate);
  const auto* bits = key.data<const int64_t>("key", {1});
  float* factors = out.data<float>("out", {"rows", "size"});
  tgflow::keep_factors(static_cast<uint64_t>(*bits), rate, out.length(0), out.length(1), factors);
}

void gelu_dropout(const TensorArg& key, double rate, const TensorArg& x, const TensorArg& out) {
  check_rate(rate);
  const auto* bits = key.data<const int64_t>("key", {1});
  float* values = x.data<float>("x", {"size"});
  float* result = out.data<float>("out", {x.length(0)});
  tgflow::gelu_dropout(static_cast<uint64_t>(*bits), rate, x.length(0), values, result);
}

/// A ring on the host; where it is not full its rows are as many as its capacity.
tgflow::VersionRing ring_of(const TensorArg& clock, const TensorArg& link, const TensorArg& origin,
                            const TensorArg& head, const std::pair<int64_t, int64_t>& counts,
                            int64_t num_events, std::array<int64_t, 2>& held) {
  check_number("the next number", counts.first, 0, int64_t{1} << 62);
  check_number("the position", counts.second, 0, tgflow::kMaxEvents);
  check_number("num_events", num_events, 0, tgflow::kMaxEvents);
  held = {counts.first, counts.second};
  auto* const clocks =
      const_cast<int64_t*>(clock.data<const int64_t>("clock", {"slots", tgflow::kClockWidth}));
  const int64_t slots = clock.length(0);
  check_number("the number of slots", slots, 1);
  auto* const links = const_cast<int64_t*>(link.data<const int64_t>("link", {slots, tgflow::kLinkWidth}));
  auto* const origins =
      const_cast<int64_t*>(origin.data<const int64_t>("origin", {slots, tgflow::kOriginWidth}));
  auto* const heads = const_cast<int64_t*>(head.vector<const int64_t>("head").data);
  return {nullptr, clocks, links, origins, heads, held.data(), slots, num_events};
}

void version_slots(const TensorArg& clock, const TensorArg& link, const TensorArg& origin,
                   const TensorArg& head, const std::pair<int64_t, int64_t>& counts, int64_t num_events,
                   const TensorArg& node, const TensorArg& position, const TensorArg& out) {
  std::array<int64_t, 2> held;
  const tgflow::VersionRing ring = ring_of(clock, link, origin, head, counts, num_events, held);
  const auto nodes = node.vector<const int64_t>("node");
  check_range("node", nodes, 0, head.length(0));
  const auto* as_of = position.data<const int64_t>("position", {nodes.size});
  auto* slots = out.data<int64_t>("out", {nodes.size});
  for (int64_t i = 0; i < nodes.size; ++i) slots[i] = tgflow::version_slot(ring, nodes.data[i], as_of[i]);
}

void version_links(const TensorArg& clock, const TensorArg& link, const TensorArg& origin,
                   const TensorArg& head, const std::pair<int64_t, int64_t>& counts, int64_t num_events,
                   const TensorArg& node, const TensorArg& out) {
  std::array<int64_t, 2> held;
  const tgflow::VersionRing ring = ring_of(clock, link, origin, head, counts, num_events, held);
  const auto nodes = node.vector<const int64_t>("node");
  check_range("node", nodes, 0, head.length(0));
  auto* links = out.data<int64_t>("out", {nodes.size, tgflow::kLinkWidth});
  for (int64_t i = 0; i < nodes.size; ++i) {
    const tgflow::VersionLink after = tgflow::link_after(ring, ring.head[nodes.data[i]]);
    links[3 * i] = after.previous;
    links[3 * i + 1] = after.far;
    links[3 * i + 2] = after.depth;
  }
}

tgflow::Matrix matrix_of(const TensorArg& x, const float* data) {
  return {data, x.stride(x.dims() - 2), x.stride(x.dims() - 1)};
}

tgflow::Matrix transposed(const tgflow::Matrix& x) { return {x.data, x.column_stride, x.row_stride}; }

/// out = prior + a b of matrices or, without `prior`, of several: [H, M, K] and [H, K, N]. One side of each
/// matrix of `out` is contiguous.
void multiply(const TensorArg& a, const TensorArg& b, const TensorArg& out, const OptionalTensor& prior,
              bool rounds) {
  const bool is_one = a.dims() == 2;
  const int rows = is_one ? 0 : 1, columns = rows + 1;
  const auto* left =
      is_one ? a.strided<const float>("a", {"M", "K"}) : a.strided<const float>("a", {"H", "M", "K"});
  const int64_t num = is_one ? 1 : a.length(0), m = a.length(rows), k = a.length(columns);
  const auto* right =
      is_one ? b.strided<const float>("b", {k, "N"}) : b.strided<const float>("b", {num, k, "N"});
  const int64_t n = b.length(columns);
  auto* to = is_one ? out.strided<float>("out", {m, n}) : out.strided<float>("out", {num, m, n});
  int64_t a_next = is_one ? 0 : a.stride(0), b_next = is_one ? 0 : b.stride(0);
  tgflow::Product product{m, n, k, matrix_of(a, left), matrix_of(b, right), {}, to, out.stride(rows)};
  if (n > 1 && out.stride(columns) != 1) {  // the transposed product has its rows in one piece
    if (m > 1 && out.stride(rows) != 1) throw std::invalid_argument("out must have a contiguous side");
    if (prior) throw std::invalid_argument("out must have contiguous rows if there is a prior");
    product = {n, m, k, transposed(product.b), transposed(product.a), {}, to, out.stride(columns)};
    std::swap(a_next, b_next);
  }
  if (prior && !is_one) throw std::invalid_argument("prior must be None for several products");
  if (prior && prior->dims() == 1) {
    product.prior = {prior->data<const float>("prior", {n}), 0, 1};
  } else if (prior) {
    const auto* data = prior->strided<const float>("prior", {m, n});
    product.prior = matrix_of(*prior, data);
    if (n > 1 && product.prior.column_stride != 1)
      throw std::invalid_argument("prior must have contiguous rows");
  }
  if (rounds && !tgflow::has_bfloat16()) {
    throw std::invalid_argument("this machine has no instructions for bfloat16 (AVX512_BF16)");
  }
  for (int64_t h = 0; h < num; ++h) {
    tgflow::multiply(product, rounds ? tgflow::Rounding::kBfloat16 : tgflow::Rounding::kNone);
    product.a.data += a_next, product.b.data += b_next;
    if (!is_one) product.out += out.stride(0);
  }
}

}  // namespace bindings::layers

void bind_layers(py::module_& m) {
  using namespace bindings::layers;
  m.def("attend", &attend, py::kw_only(), "query"_a, "below"_a, "neighbor"_a, "edge_table"_a, "edge_row"_a,
        "mask"_a, "dt"_a, "frequency"_a, "keep"_a, "weight"_a, "inputs"_a, "total"_a, no_gil());
  m.def("attend_backward", &attend_backward, py::kw_only(), "query"_a, "below"_a, "neighbor"_a,
        "edge_table"_a, "edge_row"_a, "mask"_a, "dt"_a, "frequency"_a, "keep"_a, "weight"_a, "grad_inputs"_a,
        "grad_total"_a, "grad_query"_a, "grad_below"_a, no_gil());
  m.def("multiply", &multiply, py::kw_only(), "a"_a, "b"_a, "out"_a, "prior"_a, "rounds"_a, no_gil());
  m.def("has_bfloat16", &tgflow::has_bfloat16);
  m.def("attend_projected", &attend_projected, py::kw_only(), "query_row"_a, "query"_a, "time_query"_a,
        "below"_a, "neighbor"_a, "edges"_a, "edge_row"_a, "bias"_a, "eid"_a, "mask"_a, "dt"_a, "frequency"_a,
        "time"_a, "value"_a, no_gil());
  m.def("keep_factors", &keep_factors, py::kw_only(), "key"_a, "rate"_a, "out"_a, no_gil());
  m.def("gelu_dropout", &gelu_dropout, py::kw_only(), "key"_a, "rate"_a, "x"_a, "out"_a, no_gil());
  m.def("version_slots", &version_slots, py::kw_only(), "clock"_a, "link"_a, "origin"_a, "head"_a, "counts"_a,
        "num_events"_a, "node"_a, "position"_a, "out"_a, no_gil());
  m.def("version_links", &version_links, py::kw_only(), "clock"_a, "link"_a, "origin"_a, "head"_a, "counts"_a,
        "num_events"_a, "node"_a, "out"_a, no_gil());
}
