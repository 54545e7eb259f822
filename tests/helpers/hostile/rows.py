"""Calls of rankings, tables, files, caches and the planner."""

import itertools
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helpers.hostile.attempts import INT64_MAX, NUM, ROWS, WIDTH, Call, K, ids, simple
from tgflow import _core


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


def cache_lookup(method: str) -> Callable[[], Call]:
    def make() -> Call:
        arguments = {"id": ids(0, 2, 4), "size": ROWS}
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
    }

    def apply(**given: Any) -> None:
        try:
            cache("belady").apply(**given)
        except _core.ScheduleMismatch as error:  # a refusal too: of a plan for other ids
            raise ValueError(str(error)) from error

    indices = {"id": (-(2**63), ROWS), "planned": (0, ROWS)}
    return Call(apply, arguments, indices, {"size": [-1, 0, 4]}, any_length={"id"})


def cache_finish() -> Call:
    there = cache()
    lookup = there.look_up(ids(0, 1, 2), ROWS)  # all of them are missing
    arguments = {"lookup": lookup, "rows": rows_of(NUM), "out": rows_of(NUM)}
    return Call(there.finish, arguments, any_type={"rows", "out"})


def cache_append() -> Call:
    arguments = {"first": 0, "rows": rows_of(NUM)}
    numbers = {"first": [-1, INT64_MAX]}
    return Call(cache().append, arguments, numbers=numbers, any_type={"rows"}, any_length={"rows"})


def cache_state(method: str, **more: Any) -> Call:
    there = cache()
    state = {"id": ids(0, 1, -1, -1), "key": ids(1, 2, 0, 0), **more}
    call = Call(getattr(there, method), state)
    if more:
        call.indices = {"id": (-1, INT64_MAX), "key": (0, INT64_MAX)}
    return call


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


CASES: dict[str, Callable[[], Call]] = {
    "choose_positions": lambda: Call(
        _core.choose_positions,
        {"begin": 3, "every": 5, "out": torch.ones(NUM, dtype=torch.bool)},
        numbers={"begin": [-1, INT64_MAX], "every": [0, -1]},
        any_length={"out"},
    ),
    "rank_scores": lambda: Call(
        _core.rank_scores,
        {
            "positive": torch.ones(NUM).double(),
            "negative": torch.ones(NUM, K).double(),
            "tolerance": 0.0,
            "out": torch.ones(NUM).double(),
        },
        any_width={"negative"},
        any_float={"positive", "negative"},
    ),
    "compare_scores": lambda: Call(
        _core.compare_scores,
        {
            "positive": torch.ones(NUM).double(),
            "negative": torch.ones(ROWS).double(),
            "tolerance": 0.0,
        },
        any_length={"positive", "negative"},
        any_float={"positive", "negative"},
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
    "ReservedMemory.clear": simple(
        lambda: _core.ReservedMemory(1 << 20).clear,
        {"begin": 0, "bytes": 0},
        numbers={"begin": [-1, 1, INT64_MAX], "bytes": [-1, 1, INT64_MAX]},
    ),
    "RowCache.__init__": new_cache,
    "RowCache.look_up": cache_lookup("look_up"),
    "RowCache.preload": cache_lookup("preload"),
    "RowCache.apply": cache_apply,
    "RowCache.finish": cache_finish,
    "RowCache.append": cache_append,
    "RowCache.truncate": simple(lambda: cache().truncate, {"size": 3}),
    "RowCache.snapshot": lambda: cache_state("snapshot"),
    "RowCache.restore": lambda: cache_state("restore", size=ROWS),
    "Belady.__init__": new_planner,
    "Belady.observe": observe,
    "Belady.plan_next": plan_next,
    "Belady.contents": lambda: planner("contents", id=ids(0, 0, 0, 0)),
    "set_num_threads": simple(
        lambda: _core.set_num_threads, {"num_threads": 2}, numbers={"num_threads": [-1, 0, 2**40]}
    ),
    "set_simd_level": simple(lambda: _core.set_simd_level, {"level": _core.simd_level()}),
}
