"""Calls of the id maps and of the embedding cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from helpers.hostile.attempts import INT64_MAX, NUM, Call, ids, simple
from tgflow import _core

COLUMN_METHODS = ("copy", "num_items", "map_file")
STRINGS = (ids(0, 1, 2, 3), torch.tensor([97, 98, 99], dtype=torch.uint8))


def column(integers: bool) -> tuple[Tensor, Tensor | None]:
    return (ids(7, 8, 9), None) if integers else (STRINGS[0].clone(), STRINGS[1].clone())


def id_map(integers: bool, method: str) -> Callable[[], Call]:
    """Return a factory of calls to a map of 3 ids."""

    def make() -> Call:
        kind = _core.IntIdMap if integers else _core.StringIdMap
        known, empty = kind(True), kind(True)
        known.encode(column(integers), column(integers), ids(0, 0, 0), ids(0, 0, 0))
        sides = torch.zeros(NUM, dtype=torch.uint8)
        calls = {
            "encode": Call(
                known.encode,
                {
                    "src": column(integers),
                    "dst": column(integers),
                    "src_out": ids(0, 0, 0),
                    "dst_out": ids(0, 0, 0),
                },
            ),
            "find": Call(known.find, {"ids": column(integers), "dst": True, "out": ids(0, 0, 0)}),
            "restore": Call(empty.restore, {"ids": column(integers), "sides": sides}),
            "copy": Call(
                known.copy,
                {"column": _core.IdColumn.sides, "begin": 4, "out": torch.zeros(2).byte()},
                numbers={"begin": [-1, 5, INT64_MAX - 1]},
                any_length={"out"},
            ),
            "num_items": Call(known.num_items, {"column": _core.IdColumn.sides}),
            "map_file": Call(
                known.map_file,
                {"column": _core.IdColumn.sides, "begin": 1, "end": 2, "fd": 0, "offset": 0},
                numbers={"begin": [-1, 3], "end": [0, 7, INT64_MAX], "offset": [-1]},
            ),
        }
        nodes, count = ids(0, 1, 2), {"nodes": (0, 6)}
        if integers:
            calls["decode"] = Call(known.decode, {"nodes": nodes, "out": ids(0, 0, 0)}, count)
        else:
            offsets = {"nodes": nodes, "out": ids(0, 0, 0, 0)}
            calls["decode_offsets"] = Call(known.decode_offsets, offsets, count)
            data = torch.zeros(NUM, dtype=torch.uint8)
            calls["decode_bytes"] = Call(known.decode_bytes, {"nodes": nodes, "out": data}, count)
            calls["decode_bytes"].any_type = {"out"}
            # Bytes after the last string are unused.
            calls["encode"].any_type = calls["find"].any_type = calls["restore"].any_type = set()
        return calls[method]

    return make


def decide_reuse() -> Call:
    arguments = {
        "batch": 1,
        "nodes": ids(0, 1, 2),
        "t": ids(0, 1, 2),
        "may_recur": torch.ones(NUM, dtype=torch.bool),
        "staleness": 2,
        "refresh": 0.5,
        "key": 1,
        "seconds_per_tick": 1.0,
        "order": ids(0, 0, 0),
        "slot": ids(0, 0, 0),
    }
    return Call(
        _core.ReuseMap(4).decide, arguments, numbers={"key": [-1], "seconds_per_tick": [0.0]}
    )


def restore_reuse() -> Call:
    columns = {"batch": ids(0, 0, 0), "nodes": ids(0, 1, 2), "t": ids(0, 1, 2)}
    arguments = {**columns, "slot": ids(0, 1, 3)}
    return Call(_core.ReuseMap(4).restore, arguments, indices={"slot": (0, 4)})


CASES: dict[str, Callable[[], Call]] = {
    **{
        f"{name}.{method}": id_map(name == "IntIdMap", method)
        for name, methods in (
            ("IntIdMap", ("encode", "find", "restore", *COLUMN_METHODS, "decode")),
            ("StringIdMap", ("encode", "find", "restore", *COLUMN_METHODS)),
            ("StringIdMap", ("decode_offsets", "decode_bytes")),
        )
        for method in methods
    },
    "ReuseMap.__init__": simple(
        lambda: _core.ReuseMap, {"capacity": 4}, numbers={"capacity": [0, -1, 2**40]}
    ),
    "ReuseMap.decide": decide_reuse,
    "ReuseMap.restore": restore_reuse,
    "may_have_other_spellings": simple(
        lambda: _core.may_have_other_spellings, {"text": b"1,2\n", "separator": ","}
    ),
    "IntIdMap.hold_index_in": simple(lambda: _core.IntIdMap(True).hold_index_in, {"folder": "."}),
    "StringIdMap.hold_index_in": simple(
        lambda: _core.StringIdMap(True).hold_index_in, {"folder": "."}
    ),
    "IntIdMap.__init__": simple(lambda: _core.IntIdMap, {"bipartite": True}),
    "StringIdMap.__init__": simple(lambda: _core.StringIdMap, {"bipartite": True}),
}
