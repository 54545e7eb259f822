#include "bindings.hpp"
#include "tgflow/attention.hpp"

using tgflow::Attention;
using tgflow::AttentionGradients;
using tgflow::AttentionOut;

void bind_attention(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<Attention>(m, "Attention")
      .def(py::init([](int64_t num_targets, int64_t k, int64_t num_heads, address_t query, bool shared_query,
                       address_t below, int64_t num_below, int64_t h_dim, address_t neighbor,
                       address_t edge_table, int64_t x_dim, address_t edge_row, address_t mask, address_t dt,
                       address_t frequency, int64_t time_dim, address_t keep) {
             return Attention{num_targets,
                              k,
                              num_heads,
                              at<const float>(query),
                              shared_query,
                              at<const float>(below),
                              num_below,
                              h_dim,
                              at<const int64_t>(neighbor),
                              at<const float>(edge_table),
                              x_dim,
                              at<const int64_t>(edge_row),
                              at<const bool>(mask),
                              at<const float>(dt),
                              at<const float>(frequency),
                              time_dim,
                              at<const float>(keep)};
           }),
           py::kw_only(), py::arg("num_targets"), py::arg("k"), py::arg("num_heads"), py::arg("query"),
           py::arg("shared_query"), py::arg("below"), py::arg("num_below"), py::arg("h_dim"),
           py::arg("neighbor"), py::arg("edge_table"), py::arg("x_dim"), py::arg("edge_row"), py::arg("mask"),
           py::arg("dt"), py::arg("frequency"), py::arg("time_dim"), py::arg("keep"));
  m.def(
      "attend",
      [](const Attention& attention, address_t weight, address_t inputs, address_t total) {
        attend(attention, AttentionOut{at<float>(weight), at<float>(inputs), at<float>(total)});
      },
      py::arg("attention"), py::kw_only(), py::arg("weight"), py::arg("inputs"), py::arg("total"), no_gil);
  m.def(
      "attend_backward",
      [](const Attention& attention, address_t weight, address_t grad_inputs, address_t grad_total,
         address_t grad_query, address_t grad_below) {
        attend_backward(attention, AttentionGradients{at<const float>(weight), at<const float>(grad_inputs),
                                                      at<const float>(grad_total), at<float>(grad_query),
                                                      at<float>(grad_below)});
      },
      py::arg("attention"), py::kw_only(), py::arg("weight"), py::arg("grad_inputs"), py::arg("grad_total"),
      py::arg("grad_query"), py::arg("grad_below"), no_gil);
}
