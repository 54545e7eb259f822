"""Tries every wrong argument against every entry of the native core.

Says each attempt before it is made, so that after a crash the last line names it. Ends with 0 if
all were refused. Run by tests/native, or by hand: python tests/helpers/hostile_arguments.py.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tgflow import _core

REFUSALS = (ValueError, TypeError, IndexError)
INT64_MAX = 2**63 - 1
FOR_TESTS = {"FileOp", "inject_fault", "StaticCsr"}
"""Of builds for development alone."""
ROWS, WIDTH, NUM, K = 5, 4, 3, 2
"""Sizes of what a good call gets: a table's rows and their width, ids, neighbors each."""


@dataclass
class Call:
    """A call that works, and what is known of its arguments."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    indices: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of an int64 tensor: what its elements may be, from the first to before the second."""
    numbers: dict[str, list[int]] = field(default_factory=dict)
    """Of a number: values that must be refused."""
    optional: set[str] = field(default_factory=set)
    """Arguments that may be None."""
    any_type: set[str] = field(default_factory=set)
    """Tensors that are taken by their bytes, whatever their type."""
    any_length: set[str] = field(default_factory=set)
    """Tensors of which nothing else depends on the length."""
    any_shape: set[str] = field(default_factory=set)
    """Tensors that are taken by their elements, whatever their shape."""
    any_width: set[str] = field(default_factory=set)
    """Matrices of which nothing else depends on the width."""
    any_stride: set[str] = field(default_factory=set)
    """Tensors whose rows may lie apart."""


def entries() -> set[str]:
    """Return the name of every function and method of the core that takes an argument."""
    found = set()
    for name, member in vars(_core).items():
        if name in FOR_TESTS or hasattr(member, "__members__"):
            continue
        if isinstance(member, type):
            methods = {"__init__": member.__init__, **vars(member)}
            found |= {f"{name}.{part}" for part, x in methods.items() if _takes_arguments(x)}
        elif _takes_arguments(member):
            found.add(name)
    return found


def _takes_arguments(member: object) -> bool:
    """Return whether it is a bound C++ function with an argument beside `self`."""
    signature = re.match(r"\w+\((self: [^,)]*(, )?)?(.*)\)( -> .*)?$", _signature(member))
    return signature is not None and bool(signature[3])


def _signature(member: object) -> str:
    if type(member).__name__ not in ("builtin_function_or_method", "instancemethod"):
        return ""
    lines = (getattr(member, "__doc__", None) or "").splitlines()
    return lines[0] if lines else ""


def wrong(call: Call, name: str, good: Any) -> Iterator[tuple[str, Any]]:
    """Yield descriptions and values of what an argument must not be."""
    if isinstance(good, Tensor):
        yield from _wrong_tensors(call, name, good)
    elif isinstance(good, tuple):  # a column of ids: its arrays, one at a time
        for i, part in enumerate(good):
            if isinstance(part, Tensor):
                bytes_of_strings = i == 1  # of any type and length: offsets say where strings end
                for what, value in _wrong_tensors(call, name, part):
                    if bytes_of_strings and not what.startswith(("on meta", "sparse", "shorter")):
                        continue
                    yield f"part {i}: {what}", (*good[:i], value, *good[i + 1 :])
        yield "one tensor", good[0]
        yield "the other kind", (good[0], good[0] if good[1] is None else None)
    elif isinstance(good, int | float) and not isinstance(good, bool):
        yield from ((str(value), value) for value in call.numbers.get(name, []))
        if isinstance(good, int):
            yield "beyond 64 bits", 2**70
        yield "a tensor", torch.zeros(2)
    if name not in call.optional and not isinstance(good, bool):  # None is false
        yield "None", None
    if not isinstance(good, str | Path):
        yield "a string", "x"
    if not isinstance(good, bool):
        yield "an object", object()


def _wrong_tensors(call: Call, name: str, good: Tensor) -> Iterator[tuple[str, Any]]:
    yield "an address", good.data_ptr()
    yield "a list", good.tolist()
    yield "on meta", good.to("meta")
    yield "sparse", good.to_sparse()
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool):
        if dtype != good.dtype and name not in call.any_type:
            yield f"of {dtype}", good.to(dtype)
    if good.numel() > 1 and name not in call.any_stride:
        yield "every other element", torch.stack([good, good], -1)[..., 0]
        yield "one element, expanded", good.flatten()[0].expand(good.shape)
    if name not in call.any_length:
        yield "longer", torch.cat([good, good])
        if len(good):
            yield "shorter", good[1:]
        if name not in call.any_type | call.any_shape:
            yield "of one more dimension", good.unsqueeze(0)
        if good.dim() > 1 and name not in call.any_width:
            yield "wider", torch.cat([good, good], -1)
            yield "narrower", good[..., 1:].contiguous()
    low, high = call.indices.get(name, (None, None))
    if low is not None and high is not None:
        for value in (low - 1, high, -(2**63), INT64_MAX):
            if low <= value < high or not -(2**63) <= value <= INT64_MAX:
                continue
            bad = good.clone()
            bad.view(-1)[-1] = value
            yield f"with {value} in it", bad


def attempt_all(cases: dict[str, Callable[[], Call]]) -> int:
    """Return how many attempts were not refused."""
    accepted = 0
    for entry, make in cases.items():
        print(f"{entry}: as it should be", flush=True)
        call = make()
        call.function(**call.arguments)
        for name in call.arguments:
            attempts = list(wrong(make(), name, make().arguments[name]))
            for what, _ in attempts:
                fresh = make()
                value = dict(wrong(fresh, name, fresh.arguments[name]))[what]
                print(f"{entry}: {name} {what}", flush=True)
                accepted += not _refuses(fresh, {**fresh.arguments, name: value})
    return accepted


def _refuses(call: Call, arguments: dict[str, Any]) -> bool:
    try:
        call.function(**arguments)
    except REFUSALS as error:
        print(f"    {type(error).__name__}: {str(error).splitlines()[0]}")
        return True
    except Exception as error:
        print(f"    NOT AS A REFUSAL: {error!r}", flush=True)
        return False
    print("    ACCEPTED", flush=True)
    return False


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def attention(**more: Tensor) -> Call:
    """What both passes read, for 3 targets of 2 neighbors each, and 2 heads."""
    heads, h_dim, x_dim, time_dim = 2, 3, 2, 2
    arguments = {
        "query": torch.ones(heads, NUM, h_dim + x_dim + time_dim),
        "below": torch.ones(ROWS, h_dim),
        "neighbor": torch.ones(NUM, K, dtype=torch.int64),
        "edge_table": torch.ones(ROWS, x_dim),
        "edge_row": torch.ones(NUM, K, dtype=torch.int64),
        "mask": torch.ones(NUM, K, dtype=torch.bool),
        "dt": torch.ones(NUM, K),
        "frequency": torch.ones(time_dim),
        "keep": torch.ones(heads, NUM, K),
        "weight": torch.ones(heads, NUM, K),
        **more,
    }
    return Call(
        _core.attend_backward if "grad_query" in more else _core.attend,
        arguments,
        indices={"neighbor": (0, ROWS), "edge_row": (0, ROWS)},
        optional={"keep"},
        # As many rows as the indices need are enough.
        any_length={"below", "edge_table"} if "grad_query" not in more else {"edge_table"},
    )


def forward() -> Call:
    return attention(inputs=torch.ones(2, NUM, 7), total=torch.ones(2, NUM))


def backward() -> Call:
    return attention(
        grad_inputs=torch.ones(2, NUM, 7),
        grad_total=torch.ones(2, NUM),
        grad_query=torch.ones(2, NUM, 7),
        grad_below=torch.ones(ROWS, 3),
    )


def gru(function: Callable[..., None], **more: Tensor) -> Call:
    memory, own, gates = (torch.ones(NUM, width) for width in (WIDTH, WIDTH, 3 * WIDTH))
    arguments = {"memory": memory, "own": own, "gates": gates, **more}
    return Call(function, arguments, any_stride={"memory"})


def rows_of(size: int) -> Tensor:
    return torch.ones(size, WIDTH)


def gather_rows() -> Call:
    arguments = {
        "rows": rows_of(ROWS),
        "row_bytes": 4 * WIDTH,
        "size": ROWS,
        "id": ids(0, 2, 4),
        "out": rows_of(NUM),
    }
    return Call(
        _core.gather_rows,
        arguments,
        indices={"id": (-(2**63), ROWS)},
        numbers={"row_bytes": [-1, 0, 1, 15, 2**40, INT64_MAX], "size": [-1, ROWS + 1, INT64_MAX]},
        any_type={"rows", "out"},
        any_length={"rows"},
        any_shape={"id"},
    )


def scatter_rows() -> Call:
    call = gather_rows()
    call.function, call.indices = _core.scatter_rows, {"id": (0, ROWS)}
    call.arguments["source"] = call.arguments.pop("out")
    call.any_type, call.any_shape = {"rows", "source"}, set()
    return call


FOLDER = tempfile.TemporaryDirectory()
_names = itertools.count()


def new_file() -> Any:
    """Return a file of 5 rows."""
    file = _core.RowFile(f"{FOLDER.name}/{next(_names)}", 4 * WIDTH, "float32 [4]")
    file.append(rows_of(ROWS))
    return file


def open_file() -> Call:
    arguments = {"path": f"{FOLDER.name}/{next(_names)}", "row_bytes": 16, "kind": "float32 [4]"}
    return Call(_core.RowFile, arguments, numbers={"row_bytes": [-1, 0, 2**40, INT64_MAX]})


def start_reading() -> Call:
    reader = _core.RowReader(new_file(), 1 << 20, "auto")
    arguments = {"id": ids(0, 2, 4), "size": ROWS, "out": rows_of(NUM)}
    return Call(
        lambda **x: reader.start(**x).wait(),
        arguments,
        indices={"id": (-(2**63), ROWS)},
        numbers={"size": [-1, 4, ROWS + 1, INT64_MAX]},
        any_type={"out"},
        any_shape={"id"},
    )


def cache(place: str = "lru", capacity: int = 4) -> Any:
    return _core.RowCache(getattr(_core.CachePolicy, place), capacity, 4 * WIDTH)


def new_cache() -> Call:
    arguments = {"policy": _core.CachePolicy.lru, "capacity": 4, "row_bytes": 16}
    numbers = {"capacity": [-1, 2**30, INT64_MAX], "row_bytes": [-1, 0]}
    return Call(_core.RowCache, arguments, numbers=numbers)


def cache_gather() -> Call:
    arguments = {"table": rows_of(ROWS), "id": ids(0, 2, 4), "out": rows_of(NUM)}
    indices = {"id": (-(2**63), ROWS)}
    return Call(
        cache().gather,
        arguments,
        indices,
        any_type={"table", "out"},
        any_length={"table"},
        any_shape={"id"},
    )


def cache_lookup(method: str) -> Callable[[], Call]:
    def make() -> Call:
        arguments = {"id": ids(0, 2, 4), "size": ROWS, "out": _core.CacheLookup()}
        call = Call(getattr(cache(), method), arguments, {"id": (-(2**63), ROWS)})
        call.numbers, call.any_length = {"size": [-1, 0, 4]}, {"id"}
        return call

    return make


def cache_apply() -> Call:
    arguments = {
        "planned": ids(0, 2, 4),
        "hit": torch.full((NUM,), -1, dtype=torch.int32),
        "admit": torch.tensor([0, 1, -1], dtype=torch.int32),
        "id": ids(0, 2, 4),
        "size": ROWS,
        "out": _core.CacheLookup(),
    }

    def apply(**given: Any) -> None:
        try:
            cache("belady").apply(**given)
        except _core.ScheduleMismatch as error:  # a refusal too: of a plan for other ids
            raise ValueError(str(error)) from error

    indices = {"id": (-(2**63), ROWS), "planned": (0, ROWS)}
    return Call(apply, arguments, indices, {"size": [-1, 0, 4]}, any_length={"id"})


def under_way(rows: int = NUM) -> tuple[Any, Any]:
    """Return a cache and a lookup of 3 ids there, all of which are missing."""
    there, lookup = cache(), _core.CacheLookup()
    there.look_up(ids(*range(rows)), ROWS, lookup)
    return there, lookup


def cache_copy() -> Call:
    there, lookup = under_way()
    arguments = {"lookup": lookup, "rows": rows_of(NUM), "out": rows_of(NUM)}
    return Call(there.copy, arguments, any_type={"rows", "out"})


def cache_finish() -> Call:
    there, lookup = under_way()
    return Call(there.finish, {"lookup": lookup, "done": False})


def cache_append() -> Call:
    arguments = {"first": 0, "rows": rows_of(NUM)}
    numbers = {"first": [-1, INT64_MAX]}
    return Call(cache().append, arguments, numbers=numbers, any_type={"rows"}, any_length={"rows"})


def cache_write() -> Call:
    return Call(cache().write, {"id": ids(0, 1, 2), "rows": rows_of(NUM)}, any_type={"rows"})


def cache_state(method: str, **more: Any) -> Call:
    there = cache()
    state = {"id": ids(0, 1, -1, -1), "key": ids(1, 2, 0, 0), **more}
    call = Call(getattr(there, method), state)
    if more:
        call.indices = {"id": (-1, INT64_MAX), "key": (0, INT64_MAX)}
    return call


def copy_misses() -> Call:
    return Call(under_way()[1].copy_misses, {"out": ids(0, 0, 0)})


def planner(method: str, **arguments: Any) -> Call:
    belady = _core.Belady(4, None)
    belady.observe(ids(0, 1, 2))
    return Call(getattr(belady, method), arguments)


def plan_next() -> Call:
    hit = torch.zeros(NUM, dtype=torch.int32)
    return planner("plan_next", id=ids(0, 0, 0), hit=hit, admit=hit.clone())


def observe() -> Call:
    call = planner("observe", id=ids(3, 4, 5))
    call.indices, call.any_length = {"id": (0, 2**63)}, {"id"}
    return call


def new_planner() -> Call:
    call = Call(
        _core.Belady, {"num_slots": 4, "contents": ids(0, 1, -1, -1)}, optional={"contents"}
    )
    call.numbers = {"num_slots": [-1, 3, 5, 2**30, INT64_MAX]}
    return call


STRINGS = (ids(0, 1, 2, 3), torch.tensor([97, 98, 99], dtype=torch.uint8))


def column(integers: bool) -> tuple[Tensor, Tensor | None]:
    return (ids(7, 8, 9), None) if integers else (STRINGS[0].clone(), STRINGS[1].clone())


def id_map(integers: bool, method: str) -> Callable[[], Call]:
    """Return a maker of calls to a map that knows 3 ids."""

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
            "copy_sides": Call(
                known.copy_sides, {"out": torch.zeros(6, dtype=torch.uint8)}, any_length={"out"}
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
            # Bytes behind the last string are nobody's.
            calls["encode"].any_type = calls["find"].any_type = calls["restore"].any_type = set()
        return calls[method]

    return make


def events(size: int = NUM) -> dict[str, Tensor]:
    """Return the columns of events that can follow those of `grown`."""
    return {"src": ids(0, 1, 2), "dst": ids(3, 4, 5), "t": ids(9, 9, 10), "label": ids(0, 1, 2)}


def grown() -> Any:
    """Return a graph of 3 events."""
    graph = _core.TemporalGraph(_core.Direction.undirected, INT64_MAX)
    graph.append(**(events() | {"t": ids(1, 2, 3)}), allow_late=False)
    return graph


def new_graph() -> Call:
    arguments = {"direction": _core.Direction.directed, "device_budget": 4096}
    return Call(_core.TemporalGraph, arguments, numbers={"device_budget": [-1]})


def write_events(method: str, **more: bool) -> Callable[[], Call]:
    nodes = {"src": (0, 2**31 - 1), "dst": (0, 2**31 - 1)}
    return lambda: Call(getattr(grown(), method), events() | more, indices=nodes)


def mutate(method: str, arguments: dict[str, Any], **known: Any) -> Callable[[], Call]:
    return lambda: Call(getattr(grown(), method), dict(arguments), **known)


def read_log(method: str, arguments: dict[str, Any], **known: Any) -> Callable[[], Call]:
    return lambda: Call(getattr(grown().log, method), dict(arguments), **known)


def gather_events() -> Call:
    columns = {name: torch.zeros_like(column) for name, column in events().items()}
    arguments = {"eid": ids(0, 2, 1), **columns}
    return Call(grown().log.gather, arguments, {"eid": (0, 3)}, optional={"label"})


def sample(**more: Any) -> Call:
    """Ask about every kind of node and time: unknown ones have no neighbors."""
    nodes, t = ids(0, -(2**63), INT64_MAX), ids(INT64_MAX, 0, -(2**63))
    arguments = {
        "graph": grown(),
        "strategy": _core.Strategy.decayed,
        "key": 1,
        "span": 1,
        "types": torch.full((1024,), -1),
        "nodes": nodes,
        "t": t,
        "as_of": ids(2, -1, INT64_MAX),
        "as_of_all": 2,
        "out_nodes": torch.zeros(NUM, K, dtype=torch.int64),
        "out_t": torch.zeros(NUM, K, dtype=torch.int64),
        "out_eid": torch.zeros(NUM, K, dtype=torch.int64),
        "out_count": torch.zeros(NUM, dtype=torch.int32),
    }
    numbers = {"key": [-1], "span": [0, -1]}
    return Call(_core.sample_neighbors, arguments, numbers=numbers, optional={"types", "as_of"})


def known_pairs() -> Any:
    index = _core.PairIndex()
    index.append(ids(0, 1, 2), ids(3, 4, 5))
    return index


def append_pairs() -> Call:
    nodes = {"src": (0, 2**31 - 1), "dst": (0, 2**31 - 1)}
    return Call(_core.PairIndex().append, {"src": ids(0, 1, 2), "dst": ids(3, 4, 5)}, nodes)


def draw_negatives(method: str) -> Callable[[], Call]:
    room = {name: torch.zeros(NUM, K, dtype=torch.int64) for name in ("out_src", "out_dst")}

    def make() -> Call:
        arguments: dict[str, Any] = {
            "key": 1,
            "src": ids(0, 1, 2),
            "dst": ids(3, 4, 5),
            "cut": ids(3, -(2**63), INT64_MAX),
            "limit": 3,
        }
        if method == "draw_pairs":
            arguments |= {"pairs_from": -5, **room}
        else:
            arguments |= {"out_dst": room["out_dst"]}
        nodes = {"src": (0, 2**31 - 1), "dst": (0, 2**31 - 1)}
        numbers = {"key": [-1], "limit": [-1, 4, INT64_MAX]}
        any_width = {"out_dst"} if method == "draw_destinations" else set()
        return Call(getattr(known_pairs(), method), arguments, nodes, numbers, any_width=any_width)

    return make


def frontier(size: int) -> dict[str, Any]:
    room = {name: torch.zeros(size, dtype=torch.int64) for name in ("node", "t", "position")}
    columns = {"node": ids(0, -(2**63), INT64_MAX), "t": ids(5, 5, 6), "position": ids(0, 0, 0)}
    return {**columns, **{f"out_{name}": column for name, column in room.items()}}


NOT_NEEDED = {"out_t", "out_position"}


def unique_queries() -> Call:
    arguments = {**frontier(NUM), "row": ids(0, 0, 0)}
    return Call(_core.unique_queries, arguments, optional=NOT_NEEDED)


def expand_frontier() -> Call:
    slots = torch.zeros(NUM, K, dtype=torch.int64)
    arguments = {
        **frontier(NUM * (K + 1)),
        "neighbor_node": torch.tensor([[0, -1], [7, 8], [INT64_MAX, 0]]),
        "neighbor_t": slots.clone(),
        "seconds_per_tick": 1.0,
        "target": ids(0, 0, 0),
        "neighbor": slots.clone(),
        "mask": slots.bool(),
        "dt": slots.float(),
    }
    return Call(_core.expand_frontier, arguments, optional=NOT_NEEDED)


def unique_events() -> Call:
    """The lists are tried as a whole: one of another length, dtype or kind among them."""
    arguments = {"eids": ids(0, 1, 2), "rows": ids(0, 0, 0), "out": ids(0, 0, 0, 0)}

    def of_lists(eids: Any, rows: Any, out: Any) -> None:
        _core.unique_events([eids], [rows], out)

    return Call(of_lists, arguments, any_shape={"eids", "rows"})


def draw_replay() -> Call:
    arguments = {"begin": 0, "end": 9, "half_life": 2.0, "key": 1, "out": ids(0, 0, 0)}
    numbers: dict[str, list[Any]] = {
        "begin": [-1, 10, INT64_MAX],
        "end": [-1, 2**40, INT64_MAX],
        "half_life": [0.0, -1.0, float("nan")],
        "key": [-1],
    }
    return Call(_core.draw_replay, arguments, numbers=numbers, any_length={"out"})


def simple(make: Callable[[], Any], arguments: dict[str, Any], **known: Any) -> Callable[[], Call]:
    return lambda: Call(make(), dict(arguments), **known)


CASES: dict[str, Callable[[], Call]] = {
    "attend": forward,
    "attend_backward": backward,
    "gru_forward": lambda: gru(_core.gru_forward, out=torch.ones(NUM, WIDTH)),
    "gru_backward": lambda: gru(
        _core.gru_backward,
        grad_out=torch.ones(NUM, WIDTH),
        grad_gates=torch.ones(NUM, 3 * WIDTH),
        grad_own=torch.ones(NUM, WIDTH),
    ),
    "gather_rows": gather_rows,
    "scatter_rows": scatter_rows,
    "RowFile.__init__": open_file,
    "RowFile.append": lambda: Call(
        new_file().append, {"rows": rows_of(NUM)}, any_type={"rows"}, any_length={"rows"}
    ),
    "RowFile.truncate": simple(lambda: new_file().truncate, {"size": 3}, numbers={"size": [-1]}),
    "RowReader.__init__": lambda: Call(
        _core.RowReader, {"file": new_file(), "budget": 1 << 20, "wish": "pread"}
    ),
    "RowReader.start": start_reading,
    "probe_reads": simple(lambda: _core.probe_reads, {"path": __file__}),
    "ReservedMemory.__init__": simple(
        lambda: _core.ReservedMemory, {"bytes": 1 << 20}, numbers={"bytes": [-1]}
    ),
    "ReservedMemory.commit": simple(
        lambda: _core.ReservedMemory(1 << 20).commit,
        {"bytes": 4096},
        numbers={"bytes": [-1, (1 << 20) + 1, INT64_MAX]},
    ),
    "RowCache.__init__": new_cache,
    "RowCache.gather": cache_gather,
    "RowCache.look_up": cache_lookup("look_up"),
    "RowCache.preload": cache_lookup("preload"),
    "RowCache.apply": cache_apply,
    "RowCache.copy": cache_copy,
    "RowCache.finish": cache_finish,
    "RowCache.append": cache_append,
    "RowCache.write": cache_write,
    "RowCache.truncate": simple(lambda: cache().truncate, {"size": 3}),
    "RowCache.snapshot": lambda: cache_state("snapshot"),
    "RowCache.restore": lambda: cache_state("restore", size=ROWS, out=_core.CacheLookup()),
    "CacheLookup.copy_misses": copy_misses,
    "Belady.__init__": new_planner,
    "Belady.observe": observe,
    "Belady.plan_next": plan_next,
    "Belady.contents": lambda: planner("contents", id=ids(0, 0, 0, 0)),
    "TemporalGraph.__init__": new_graph,
    "TemporalGraph.check": write_events("check", allow_late=False),
    "TemporalGraph.append": write_events("append", allow_late=True),
    "TemporalGraph.record": write_events("record"),
    "TemporalGraph.remove": mutate(
        "remove", {"eid": ids(0, 2, 1)}, indices={"eid": (0, 3)}, any_length={"eid"}
    ),
    "TemporalGraph.remove_pair": mutate("remove_pair", {"src": -(2**63), "dst": INT64_MAX}),
    "TemporalGraph.remove_node": mutate("remove_node", {"v": INT64_MAX}),
    "TemporalGraph.retain": mutate(
        "retain", {"min_t": INT64_MAX, "max_count": 0}, numbers={"max_count": [-1]}
    ),
    "TemporalGraph.move_down": mutate("move_down", {"bytes": 0}, numbers={"bytes": [-1]}),
    "EventLog.position": read_log("position", {"t": -(2**63)}),
    "EventLog.check_eids": read_log(
        "check_eids", {"eid": ids(0, 2, 1)}, indices={"eid": (0, 3)}, any_length={"eid"}
    ),
    "EventLog.columns": read_log(
        "columns",
        {"start": 1, "stop": 2},
        numbers={"start": [-1, 3, INT64_MAX], "stop": [-1, 0, 4, INT64_MAX]},
    ),
    "EventLog.gather": gather_events,
    "sample_neighbors": sample,
    "PairIndex.append": append_pairs,
    "PairIndex.num_destinations": simple(
        lambda: known_pairs().num_destinations, {"before": -(2**63)}
    ),
    "PairIndex.num_pairs": simple(lambda: known_pairs().num_pairs, {"before": INT64_MAX}),
    "PairIndex.draw_destinations": draw_negatives("draw_destinations"),
    "PairIndex.draw_pairs": draw_negatives("draw_pairs"),
    "unique_queries": unique_queries,
    "expand_frontier": expand_frontier,
    "unique_events": unique_events,
    "draw_replay": draw_replay,
    "mix64": simple(lambda: _core.mix64, {"x": 5}, numbers={"x": [-1]}),
    "set_num_threads": simple(
        lambda: _core.set_num_threads, {"num_threads": 2}, numbers={"num_threads": [-1, 0, 2**40]}
    ),
    **{
        f"{name}.{method}": id_map(name == "IntIdMap", method)
        for name, methods in (
            ("IntIdMap", ("encode", "find", "restore", "copy_sides", "decode")),
            ("StringIdMap", ("encode", "find", "restore", "copy_sides")),
            ("StringIdMap", ("decode_offsets", "decode_bytes")),
        )
        for method in methods
    },
    "IntIdMap.__init__": simple(lambda: _core.IntIdMap, {"bipartite": True}),
    "StringIdMap.__init__": simple(lambda: _core.StringIdMap, {"bipartite": True}),
}
"""A maker of a call for every entry of the core."""

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(attempt_all(CASES) > 0)
