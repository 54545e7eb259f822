"""Calls of the graph, its log, the samplers and the plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from helpers.hostile.attempts import INT64_MAX, NUM, Call, K, ids, simple
from tgflow import _core


def events(size: int = NUM) -> dict[str, Tensor]:
    """Return columns of valid next events for `grown`."""
    return {"src": ids(0, 1, 2), "dst": ids(3, 4, 5), "t": ids(9, 9, 10), "relation": ids(0, 1, 2)}


def grown() -> Any:
    """Return a graph of 3 events."""
    graph = _core.TemporalGraph(_core.Direction.undirected, INT64_MAX, 0, 64)
    graph.append(**(events() | {"t": ids(1, 2, 3)}), allow_late=False)
    return graph


def new_graph() -> Call:
    arguments = {
        "direction": _core.Direction.directed, "device_budget": 4096, "first_part": 20,
        "num_parts": 44, "first": 5, "folder": ".",
    }  # fmt: skip
    numbers = {"device_budget": [-1], "first_part": [-1, 21, 64], "num_parts": [0, 45]}
    numbers["first"] = [-1, INT64_MAX]
    return Call(_core.TemporalGraph, arguments, numbers=numbers)


def write_events(method: str, **more: bool) -> Callable[[], Call]:
    nodes = {"src": (0, 2**31 - 1), "dst": (0, 2**31 - 1)}
    return lambda: Call(getattr(grown(), method), events() | more, indices=nodes)


def mutate(method: str, arguments: dict[str, Any], **known: Any) -> Callable[[], Call]:
    return lambda: Call(getattr(grown(), method), dict(arguments), **known)


def read_log(method: str, arguments: dict[str, Any], **known: Any) -> Callable[[], Call]:
    return lambda: Call(getattr(grown().log, method), dict(arguments), **known)


def map_events() -> Call:
    column = _core.LogColumn.t
    arguments = {"column": column, "begin": 0, "end": 2, "fd": 0, "offset": 0}
    numbers = {"begin": [-1, 3], "end": [-1, INT64_MAX], "offset": [-1]}
    return Call(grown().log.map_file, arguments, numbers=numbers)


def map_bytes() -> Call:
    held = _core.GrowingBytes(grown().log, 4)
    held.grow(3)
    arguments = {"begin": 0, "end": 2, "fd": 0, "offset": 0}
    numbers = {"begin": [-1, 3], "end": [-1, 4, INT64_MAX], "offset": [-1]}
    return Call(held.map_file, arguments, numbers=numbers)


def gather_events() -> Call:
    columns = {name: torch.zeros_like(column) for name, column in events().items()}
    arguments = {"eid": ids(0, 2, 1), **columns}
    return Call(grown().log.gather, arguments, {"eid": (0, 3)}, optional={"relation"})


def sample(**more: Any) -> Call:
    """Query every kind of node and time; unknown nodes have no neighbors."""
    nodes, t = ids(0, -(2**63), INT64_MAX), ids(INT64_MAX, 0, -(2**63))
    arguments = {
        "graph": grown(),
        "strategy": _core.Strategy.decayed,
        "key": 1,
        "span": 1,
        "relations": torch.full((1024,), -1),
        "nodes": nodes,
        "t": t,
        "as_of": ids(2, -1, INT64_MAX),
        "as_of_all": 2,
        "row": ids(7, -1, INT64_MAX),
        "since": 1,
        "out_nodes": torch.zeros(NUM, K, dtype=torch.int64),
        "out_t": torch.zeros(NUM, K, dtype=torch.int64),
        "out_eid": torch.zeros(NUM, K, dtype=torch.int64),
        "out_count": torch.zeros(NUM, dtype=torch.int32),
    }
    numbers = {"key": [-1], "span": [0, -1], "since": [-1, 4, INT64_MAX]}
    return Call(
        _core.sample_neighbors, arguments, numbers=numbers, optional={"relations", "as_of", "row"}
    )


def known_pairs() -> Any:
    index = _core.PairIndex(grown().log)
    index.append(ids(0, 1, 2), ids(3, 4, 5))
    index.read_pairs(3)
    return index


def steps_of_pairs(method: str) -> Callable[[], Call]:
    """Calls of the steps of reading the pairs of three events."""

    def make() -> Call:
        index = _core.PairIndex(grown().log)
        arguments = {"end": 3, "is_first": torch.zeros(3, dtype=torch.uint8)}
        return Call(getattr(index, method), arguments, numbers={"end": [-1, 2, 4, INT64_MAX]})

    return make


def append_events() -> Call:
    limits = {"src": (0, 2**31 - 1), "dst": (0, 2**31 - 1), "type": (0, 65_536)}
    arguments = {"src": ids(0, 1, 2), "dst": ids(3, 4, 5), "type": ids(0, 1, 1)}
    return Call(_core.PairIndex().append, arguments, limits, optional={"type"})


def types_of_pairs() -> Call:
    arguments = {"nodes": ids(0, 3, 9), "out": ids(0, 0, 0)}
    return Call(known_pairs().types, arguments, {"nodes": (0, 2**31 - 1)})


def list_destinations() -> Call:
    arguments = {"before": 2, "out": torch.zeros(2, dtype=torch.int64)}
    return Call(known_pairs().destinations, arguments, numbers={"before": [-1, 4, INT64_MAX]})


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
            arguments |= {"pairs_from": -5, "replace": False, **room}
        elif method == "draw_lists":
            hard = torch.tensor([[-1], [4], [INT64_MAX]])
            log_q = torch.zeros(NUM, K)
            arguments |= {"hard": hard, "out_dst": room["out_dst"], "out_log_q": log_q}
        else:
            mask = torch.ones(NUM, K, dtype=torch.bool)
            arguments |= {"collide": False, "mask": mask, "out_dst": room["out_dst"]}
        nodes = {"src": (0, 2**31 - 1), "dst": (0, 2**31 - 1)}
        numbers = {"key": [-1], "limit": [-1, 4, INT64_MAX]}
        any_width = {"hard"} if method == "draw_lists" else set()
        optional = {"mask"} & arguments.keys()
        call = getattr(known_pairs(), method)
        return Call(call, arguments, nodes, numbers, any_width=any_width, optional=optional)

    return make


def known_counts(read: int = 3) -> Any:
    asked = [
        (_core.CountOf.pair, 1, 2.0, _core.Clock.seconds),
        (_core.CountOf.window, 2, 0.0, _core.Clock.seconds),
    ]
    steps = [
        (_core.Op.num, 1, 0, 0, 0.0),
        (_core.Op.decayed, 0, 0, 0, 0.0),
        (_core.Op.add, 0, 1, 0, 0.0),
    ]
    counts = _core.EventCounts(grown().log, asked, steps, [0, 1, 2])
    counts.read_upto(read)
    return counts


def new_counts() -> Call:
    good = (_core.CountOf.window, 1, 1.0, _core.Clock.events)
    clock = good[3]
    depths = [(good[0], depth, 1.0, clock) for depth in (0, 65, -1, 2**70)]
    half_lives = [(good[0], 1, value, clock) for value in (-1.0, float("nan"), float("inf"))]
    others = [(_core.CountOf.covisit, 33, 0.0, clock), (good[0], 1, 1.0, _core.Clock.source)]
    wrong = [[good, bad] for bad in (*depths, *half_lives, *others, good[:3], 7)]
    plain = (good[0], 1, 0.0, clock)
    decayed, where = (_core.Op.decayed, 0, 0, 0, 0.0), (_core.Op.where, 0, 0, 0, 0.0)
    steps = [
        [(op, i, 0, 0, 0.0)] for op in (_core.Op.num, _core.Op.decayed) for i in (1, 2, -1, 2**63)
    ]
    steps += [
        [decayed, (_core.Op.where, *of, 0.0)] for of in ((1, 0, 0), (0, -1, 0), (0, 0, 2**40))
    ]
    steps += [[(op, 0, 0, 0, 0.0)] for op in (_core.Op.rank, _core.Op.since)]
    steps += [[where], [decayed[:4]], [(7, 0, 0, 0, 0.0)], [None]]
    arguments = {"log": grown().log, "counts": [good], "steps": [decayed], "results": [0]}
    numbers = {
        "counts": [*wrong, [], [plain]],
        "steps": steps,
        "results": [[1], [-1], [2**62], ["x"]],
        "max_keys": [-1, 2**40],
    }
    numbers |= {"first_part": [-1, 4, 64], "num_parts": [0, 63, INT64_MAX]}
    numbers |= {"first": [-1, 4, INT64_MAX]}
    arguments |= {"finds_latest": True, "max_keys": 5, "first_part": 2, "num_parts": 61}
    arguments |= {"first": 1}
    return Call(_core.EventCounts, arguments, numbers=numbers)


def answer_counts() -> Call:
    ends = ids(0, 1, 2), ids(3, 4, 5)
    arguments: dict[str, Any] = {
        "src": ends[0],
        "dst": ends[1],
        "negative_src": torch.zeros(NUM, K, dtype=torch.int64),
        "negative_dst": torch.zeros(NUM, K, dtype=torch.int64),
        "t": ids(0, -(2**63), INT64_MAX),
        "limit": ids(0, 3, 1),
        "out": torch.zeros(NUM, 1 + K, 3, dtype=torch.float64),
    }
    nodes = dict.fromkeys(("src", "dst", "negative_src", "negative_dst"), (0, 2**31 - 1))
    indices = {**nodes, "limit": (0, 4)}
    return Call(known_counts().answer, arguments, indices, optional={"negative_src"})


def rows_of_pairs() -> tuple[torch.Tensor, dict[str, tuple[int, int]]]:
    """Return columns of pairs, and the range of the last one, of relations."""
    columns = ids(0, 1, 2), ids(3, 4, 5), ids(0, -(2**63), INT64_MAX), ids(0, 3, 1), ids(0, 2, 1)
    return torch.stack(columns), {"rows": (0, 2**16)}


def numbers_of_pairs(method: str) -> Callable[[], Call]:
    """Calls of the steps of an answer, with a number of each pair's source and two of its keys."""

    def make() -> Call:
        rows, indices = rows_of_pairs()
        floats = partial(torch.zeros, dtype=torch.float64)
        arguments: dict[str, Any] = {
            "answer_sources": {"rows": rows, "found": floats(NUM, 3)},
            "find_keys": {
                "rows": rows, "found": floats(NUM, 3), "keys": ids(*[0] * NUM).view(1, NUM),
                "parts": ids(*[0] * NUM).view(1, NUM),
            },
            "answer_keys": {
                "num": ids(NUM), "asked": rows[:3].clone(), "out": floats(NUM, 1),
            },
            "evaluate": {
                "rows": rows, "found": floats(NUM, 3), "others": floats(1, NUM, 1),
                "out": floats(NUM, 3),
            },
        }[method]  # fmt: skip
        if method == "answer_keys":
            arguments["asked"][2] = ids(0, 3, 1)
            indices = {"num": (NUM, NUM + 1), "asked": (0, 4)}
        return Call(getattr(known_counts(), method), arguments, indices)

    return make


def read_counts(method: str) -> Callable[[], Call]:
    """Calls of the steps of reading three events."""

    def make() -> Call:
        counts = known_counts(read=0)
        facts = torch.full((3, counts.num_facts), -1, dtype=torch.int32)
        is_new = torch.zeros(3, dtype=torch.uint8)
        steps = {
            "read_sources": {"facts": facts},
            "read_others": {"facts": facts, "is_new": is_new},
            "read_continuations": {"is_new": is_new},
        }
        for name, arguments in steps.items():
            if name == method:
                break
            getattr(counts, name)(3, **arguments)
        numbers = {"end": [-1, 2, 4, INT64_MAX]}
        return Call(getattr(counts, method), {"end": 3, **steps[method]}, numbers=numbers)

    return make


def latest_destinations() -> Call:
    counts = _core.EventCounts(grown().log, [], [], [], True)
    counts.read_upto(3)
    arguments = {
        "src": ids(0, 1, 2),
        "cut": ids(0, 3, 1),
        "of_source": torch.zeros(NUM, K, dtype=torch.int64),
        "of_all": torch.zeros(NUM, K + 1, dtype=torch.int64),
    }
    indices = {"src": (0, 2**31 - 1), "cut": (0, 4)}
    return Call(counts.latest_destinations, arguments, indices, any_width={"of_source", "of_all"})


def last_events() -> Call:
    kinds = _core.CountOf.pair, _core.CountOf.src, _core.CountOf.dst
    counts = _core.EventCounts(
        grown().log, [(kind, 1, 0.0, _core.Clock.seconds) for kind in kinds], [], []
    )
    counts.read_upto(3)
    arguments = {
        "src": ids(0, 1, 2),
        "dst": ids(3, 4, 5),
        "cut": ids(0, 3, 1),
        "out": torch.zeros(NUM, 4, K, dtype=torch.int64),
    }
    indices = {"src": (0, 2**31 - 1), "dst": (0, 2**31 - 1), "cut": (0, 4)}
    return Call(counts.last_events, arguments, indices, any_width={"out"})


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
    ticks = {"seconds_per_tick": [0.0, float("nan")]}
    return Call(_core.expand_frontier, arguments, numbers=ticks, optional=NOT_NEEDED)


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


def slab() -> Any:
    return _core.Slab(_core.SlabPool(2, None))


RULES: dict[str, Any] = {
    "start": 0,
    "batch_size": 2,
    "fanouts": [2, 1],
    "strategy": _core.Strategy.recent,
    "span": 1,
    "sees_all_before": False,
    "with_memory": True,
    "with_nodes": True,
    "seconds_per_tick": 1.0,
    "num_negatives": 2,
    "draws_pairs": False,
    "cut": -1,
    "pairs_from": 0,
    "collide": True,
    "replace": True,
    "half_life": 1.0,
}


def new_preparer() -> Call:
    graph = grown()
    step = (_core.Op.age, 0, 0, 0, 0.0)
    counts = _core.EventCounts(
        graph.log, [(_core.CountOf.pair, 1, 2.0, _core.Clock.seconds)], [step], [0]
    )
    arguments = {"graph": graph, "pairs": known_pairs(), "counts": counts, **RULES}
    numbers: dict[str, list[Any]] = {
        "start": [-1, 2**40],
        "batch_size": [0, -1, INT64_MAX],
        "fanouts": [[0], [-1], [2, 2**40], ["x"], [None]],
        "span": [0, -1],
        "num_negatives": [0, -1, INT64_MAX],
        "cut": [-2, 2**40],
        "seconds_per_tick": [0.0, float("nan")],
        "half_life": [0.0, -1.0, float("nan")],
    }
    return Call(_core.Preparer, arguments, numbers=numbers, optional={"counts"})


def prepare_batch() -> Call:
    graph = grown()
    step = (_core.Op.age, 0, 0, 0, 0.0)
    counts = _core.EventCounts(
        graph.log, [(_core.CountOf.pair, 1, 2.0, _core.Clock.seconds)], [step], [0]
    )
    preparer = _core.Preparer(graph, known_pairs(), counts, **RULES)
    arguments = {
        "slab": slab(),
        "negatives_key": 1,
        "replay_key": 2,
        "negative_mask": None,
        "hop_keys": [3, 4],
        "begin": 1,
        "end": 3,
        "since": 1,
        "only": ids(1, 2),
        "replay_begin": 0,
        "num_replay": 1,
        "reads_edges": True,
        "edge_x": torch.ones(NUM, 4),
        "reads_nodes": True,
        "node_x": torch.ones(6, 4),
        "node_end": 6,
        "is_padded": True,
        "rows": ids(0, 2),
    }
    numbers: dict[str, list[Any]] = {
        "negatives_key": [-1],
        "replay_key": [-1],
        "hop_keys": [[], [1], [1, 2, 3], [1, -1], ["x", 1]],
        "begin": [-1, 3, INT64_MAX],
        "end": [0, -1, 1, 4, INT64_MAX],
        "since": [-1, 2, INT64_MAX],
        "replay_begin": [-1, 2, INT64_MAX],
        "num_replay": [-1, INT64_MAX],
        "node_end": [-1],
    }
    return Call(
        preparer.prepare,
        arguments,
        indices={"only": (0, 3), "rows": (0, 3)},
        numbers=numbers,
        optional={"negative_mask", "only", "edge_x", "node_x", "rows"},
        any_length={"only", "edge_x", "node_x", "rows"},
        any_width={"edge_x", "node_x"},
    )


CASES: dict[str, Callable[[], Call]] = {
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
    "TemporalGraph.forget": mutate(
        "forget",
        {"first": 2, "log_first": 1},
        numbers={"first": [-1, 0, 4, INT64_MAX], "log_first": [-1, 3, INT64_MAX]},
    ),
    "EventLog.position": read_log("position", {"t": -(2**63)}),
    "EventLog.positions": read_log(
        "positions", {"t": ids(0, -(2**63), INT64_MAX), "out": ids(0, 0, 0)}
    ),
    "EventLog.since": read_log("since", {"first": 3}, numbers={"first": [-1, 4, INT64_MAX]}),
    "EventLog.forget": read_log("forget", {"first": 0}, numbers={"first": [-1, 4, INT64_MAX]}),
    "EventLog.check_eids": read_log(
        "check_eids", {"eid": ids(0, 2, 1)}, indices={"eid": (0, 3)}, any_length={"eid"}
    ),
    "EventLog.columns": read_log(
        "columns",
        {"start": 1, "stop": 2},
        numbers={"start": [-1, 3, INT64_MAX], "stop": [-1, 0, 4, INT64_MAX]},
    ),
    "EventLog.gather": gather_events,
    "EventLog.map_file": map_events,
    "GrowingBytes.__init__": simple(
        lambda: _core.GrowingBytes,
        {"log": grown().log, "item_bytes": 4},
        numbers={"item_bytes": [-1, 0, 9, INT64_MAX]},
    ),
    "GrowingBytes.grow": simple(
        lambda: _core.GrowingBytes(grown().log, 4).grow,
        {"size": 3},
        numbers={"size": [-1, INT64_MAX]},
    ),
    "GrowingBytes.drop": simple(
        lambda: _core.GrowingBytes(grown().log, 4).drop,
        {"end": 0},
        numbers={"end": [-1, 1, INT64_MAX]},
    ),
    "GrowingBytes.map_file": map_bytes,
    "sample_neighbors": sample,
    "PairIndex.append": append_events,
    "PairIndex.__init__": simple(
        lambda: _core.PairIndex,
        {"log": grown().log, "first_part": 2, "num_parts": 61},
        numbers={"first_part": [-1, 4, 64], "num_parts": [0, 63, INT64_MAX]},
        optional={"log"},
    ),
    "PairIndex.read_pairs": simple(
        lambda: _core.PairIndex(grown().log).read_pairs,
        {"end": 3},
        numbers={"end": [-1, 4, INT64_MAX]},
    ),
    "PairIndex.find_pairs": steps_of_pairs("find_pairs"),
    "PairIndex.mark_pairs": steps_of_pairs("mark_pairs"),
    "PairIndex.types": types_of_pairs,
    "PairIndex.num_destinations": simple(
        lambda: known_pairs().num_destinations, {"before": -(2**63)}
    ),
    "PairIndex.num_pairs": simple(lambda: known_pairs().num_pairs, {"before": INT64_MAX}),
    "PairIndex.destinations": list_destinations,
    "PairIndex.destinations_of": simple(
        lambda: known_pairs().destinations_of,
        {"src": 1, "before": 2},
        numbers={"src": [-1, 2**31 - 1], "before": [-1, 4, INT64_MAX]},
    ),
    "PairIndex.draw_destinations": draw_negatives("draw_destinations"),
    "PairIndex.draw_pairs": draw_negatives("draw_pairs"),
    "PairIndex.draw_lists": draw_negatives("draw_lists"),
    "EventCounts.__init__": new_counts,
    "EventCounts.read_upto": simple(
        lambda: known_counts().read_upto, {"position": 3}, numbers={"position": [-1, 4, INT64_MAX]}
    ),
    "EventCounts.answer": answer_counts,
    **{
        f"EventCounts.{name}": read_counts(name)
        for name in ("read_sources", "read_others", "read_continuations")
    },
    **{
        f"EventCounts.{name}": numbers_of_pairs(name)
        for name in ("answer_sources", "find_keys", "answer_keys", "evaluate")
    },
    "EventCounts.last_events": last_events,
    "EventCounts.latest_destinations": latest_destinations,
    "unique_queries": unique_queries,
    "expand_frontier": expand_frontier,
    "unique_events": unique_events,
    "SlabPool.__init__": simple(
        lambda: _core.SlabPool,
        {"most_free": 2, "allocate": lambda size: torch.zeros(size, dtype=torch.uint8)},
        numbers={"most_free": [-1, INT64_MAX]},
        optional={"allocate"},
    ),
    "Slab.__init__": simple(lambda: _core.Slab, {"pool": _core.SlabPool(2, None)}),
    "Preparer.__init__": new_preparer,
    "Preparer.prepare": prepare_batch,
    "padded_rows": simple(
        lambda: _core.padded_rows, {"rows": 5}, numbers={"rows": [-1, 2**60 + 1, INT64_MAX]}
    ),
    "draw_replay": draw_replay,
    "derive_key": simple(lambda: _core.derive_key, {}),
}
