#include "bindings.hpp"
#include "tgflow/id_map.hpp"

namespace bindings::id_map {

using tgflow::IdColumn;
using tgflow::IdMap;
using tgflow::IntKeys;
using tgflow::node_t;
using tgflow::StringKeys;

/// A column of ids from Python: integers [N] and None, or offsets of strings [N + 1] and their bytes.
using ColumnArg = std::pair<TensorArg, OptionalTensor>;

template <typename Keys>
struct Column {
  typename Keys::Column data;
  int64_t size;
};

template <typename Keys>
Column<Keys> column(const char* name, const ColumnArg& parts);

template <>
Column<IntKeys> column<IntKeys>(const char* name, const ColumnArg& parts) {
  const auto values = parts.first.vector<const int64_t>(name);
  if (parts.second) throw py::type_error(std::string(name) + " must be integers, got strings");
  return {values.data, values.size};
}

template <>
Column<StringKeys> column<StringKeys>(const char* name, const ColumnArg& parts) {
  const auto offsets = parts.first.vector<const int64_t>(name);
  if (!parts.second) throw py::type_error(std::string(name) + " must be strings, got integers");
  const auto bytes = parts.second->bytes<const char>(name);
  bool rises = offsets.size > 0 && offsets.data[0] >= 0 && offsets.data[offsets.size - 1] <= bytes.size;
  for (int64_t i = 1; i < offsets.size; ++i) rises &= offsets.data[i - 1] <= offsets.data[i];
  if (rises) return {{offsets.data, bytes.data}, offsets.size - 1};
  throw std::invalid_argument(std::string(name) + " must have offsets that never decrease, from 0 to " +
                              std::to_string(bytes.size) + ", its bytes");
}

template <typename Keys>
void encode(IdMap<Keys>& map, const ColumnArg& src, const ColumnArg& dst, const TensorArg& src_out,
            const TensorArg& dst_out) {
  const auto sources = column<Keys>("src", src), targets = column<Keys>("dst", dst);
  if (sources.size != targets.size) {
    throw std::invalid_argument("src and dst must have one length, got " + std::to_string(sources.size) +
                                " and " + std::to_string(targets.size));
  }
  map.encode(sources.data, targets.data, sources.size, src_out.data<node_t>("src_out", {sources.size}),
             dst_out.data<node_t>("dst_out", {sources.size}));
}

template <typename Keys>
void find(const IdMap<Keys>& map, const ColumnArg& ids, bool dst, const TensorArg& out) {
  const auto keys = column<Keys>("ids", ids);
  map.find(keys.data, keys.size, dst ? tgflow::Side::kDst : tgflow::Side::kSrc,
           out.data<node_t>("out", {keys.size}));
}

template <typename Keys>
void restore(IdMap<Keys>& map, const ColumnArg& ids, const TensorArg& sides) {
  const auto keys = column<Keys>("ids", ids);
  const int64_t num_sides = map.bipartite() ? keys.size : 0;
  map.restore(keys.data, sides.data<const uint8_t>("sides", {num_sides}), keys.size);
}

template <typename Keys>
void copy(const IdMap<Keys>& map, IdColumn column, int64_t begin, const TensorArg& out) {
  if (column == IdColumn::kKeys || column == IdColumn::kEnds) {
    const auto items = out.vector<int64_t>("out");
    map.copy(column, begin, begin + items.size, items.data);
  } else {
    const auto items = out.vector<uint8_t>("out");
    map.copy(column, begin, begin + items.size, items.data);
  }
}

void decode(const IdMap<IntKeys>& map, const TensorArg& nodes, const TensorArg& out) {
  const auto ids = nodes.vector<const node_t>("nodes");
  tgflow::decode(map, ids.data, ids.size, out.data<int64_t>("out", {ids.size}));
}

void decode_offsets(const IdMap<StringKeys>& map, const TensorArg& nodes, const TensorArg& out) {
  const auto ids = nodes.vector<const node_t>("nodes");
  tgflow::decode_offsets(map, ids.data, ids.size, out.data<int64_t>("out", {ids.size + 1}));
}

void decode_bytes(const IdMap<StringKeys>& map, const TensorArg& nodes, const TensorArg& out) {
  const auto ids = nodes.vector<const node_t>("nodes");
  const auto bytes = out.bytes<char>("out");
  tgflow::decode_bytes(map, ids.data, ids.size, bytes.data, bytes.size);
}

template <typename Keys>
py::class_<IdMap<Keys>> bind_map(py::module_& m, const char* name) {
  return py::class_<IdMap<Keys>>(m, name)
      .def(py::init<bool>(), "bipartite"_a)
      .def("encode", &encode<Keys>, "src"_a, "dst"_a, "src_out"_a, "dst_out"_a, no_gil())
      .def("find", &find<Keys>, "ids"_a, "dst"_a, "out"_a, no_gil())
      .def("restore", &restore<Keys>, "ids"_a, "sides"_a, no_gil())
      .def("num_items", &IdMap<Keys>::num_items, "column"_a, no_gil())
      .def("copy", &copy<Keys>, "column"_a, "begin"_a, "out"_a, no_gil())
      .def("map_file", &IdMap<Keys>::map_file, "column"_a, "begin"_a, "end"_a, "fd"_a, "offset"_a, no_gil())
      .def("hold_index_in", &IdMap<Keys>::hold_index_in, "folder"_a, no_gil())
      .def("__len__", &IdMap<Keys>::size, no_gil());
}

bool may_have_other_spellings(const py::buffer& text, char separator) {
  const auto arg = text.cast<TensorArg>();
  const auto bytes = arg.bytes<const char>("text");
  const py::gil_scoped_release released;
  return tgflow::may_have_other_spellings({bytes.data, static_cast<size_t>(bytes.size)}, separator);
}

}  // namespace bindings::id_map

void bind_id_map(py::module_& m) {
  using namespace bindings::id_map;
  py::enum_<IdColumn>(m, "IdColumn")
      .value("keys", IdColumn::kKeys)
      .value("ends", IdColumn::kEnds)
      .value("bytes", IdColumn::kBytes)
      .value("sides", IdColumn::kSides);
  bind_map<IntKeys>(m, "IntIdMap").def("decode", &decode, "nodes"_a, "out"_a, no_gil());
  bind_map<StringKeys>(m, "StringIdMap")
      .def("decode_offsets", &decode_offsets, "nodes"_a, "out"_a, no_gil())
      .def("decode_bytes", &decode_bytes, "nodes"_a, "out"_a, no_gil());
  m.def("may_have_other_spellings", &may_have_other_spellings, "text"_a, "separator"_a);
}
