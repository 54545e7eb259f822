#include "bindings.hpp"
#include "tgflow/id_map.hpp"

namespace {

using tgflow::IdMap;
using tgflow::IntKeys;
using tgflow::node_t;
using tgflow::StringKeys;
using released = py::call_guard<py::gil_scoped_release>;
using pair = std::pair<address_t, address_t>;

/// A column crosses as two addresses: integers and nothing, or the offsets of strings and their bytes.
template <typename Keys>
typename Keys::Column column(pair addresses);

template <>
IntKeys::Column column<IntKeys>(pair addresses) {
  return at<const int64_t>(addresses.first);
}

template <>
StringKeys::Column column<StringKeys>(pair addresses) {
  return {at<const int64_t>(addresses.first), at<const char>(addresses.second)};
}

template <typename Keys>
py::class_<IdMap<Keys>> bind_map(py::module_& m, const char* name) {
  using Map = IdMap<Keys>;
  return py::class_<Map>(m, name)
      .def(py::init<bool>(), py::arg("bipartite"))
      .def(
          "encode",
          [](Map& map, pair src, pair dst, int64_t size, address_t src_out, address_t dst_out) {
            map.encode(column<Keys>(src), column<Keys>(dst), size, at<node_t>(src_out), at<node_t>(dst_out));
          },
          py::arg("src"), py::arg("dst"), py::arg("size"), py::arg("src_out"), py::arg("dst_out"), released())
      .def(
          "find",
          [](const Map& map, pair ids, int64_t size, bool dst, address_t out) {
            map.find(column<Keys>(ids), size, dst ? tgflow::Side::kDst : tgflow::Side::kSrc, at<node_t>(out));
          },
          py::arg("ids"), py::arg("size"), py::arg("dst"), py::arg("out"), released())
      .def(
          "restore",
          [](Map& map, pair ids, address_t sides, int64_t size) {
            map.restore(column<Keys>(ids), at<const uint8_t>(sides), size);
          },
          py::arg("ids"), py::arg("sides"), py::arg("size"), released())
      .def(
          "copy_sides",
          [](const Map& map, int64_t size, address_t out) { map.copy_sides(size, at<uint8_t>(out)); },
          py::arg("size"), py::arg("out"), released())
      .def("__len__", &Map::size, released());
}

}  // namespace

void bind_id_map(py::module_& m) {
  bind_map<IntKeys>(m, "IntIdMap")
      .def(
          "decode",
          [](const IdMap<IntKeys>& map, address_t nodes, int64_t size, address_t out) {
            tgflow::decode(map, at<const node_t>(nodes), size, at<int64_t>(out));
          },
          py::arg("nodes"), py::arg("size"), py::arg("out"), released());
  bind_map<StringKeys>(m, "StringIdMap")
      .def(
          "decode_offsets",
          [](const IdMap<StringKeys>& map, address_t nodes, int64_t size, address_t out) {
            tgflow::decode_offsets(map, at<const node_t>(nodes), size, at<int64_t>(out));
          },
          py::arg("nodes"), py::arg("size"), py::arg("out"), released())
      .def(
          "decode_bytes",
          [](const IdMap<StringKeys>& map, address_t nodes, int64_t size, address_t out) {
            tgflow::decode_bytes(map, at<const node_t>(nodes), size, at<char>(out));
          },
          py::arg("nodes"), py::arg("size"), py::arg("out"), released());
}
