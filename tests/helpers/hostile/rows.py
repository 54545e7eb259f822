"""Calls of attention, tables, files, caches and the planner."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helpers.hostile.attempts import INT64_MAX, NUM, ROWS, WIDTH, Call, K, ids, simple
from tgflow import _core


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


def co_occurrence() -> Call:
    arguments = {
        "self": ids(0, 1, 2, 3, 4),
        "other": torch.ones(ROWS, K, dtype=torch.int64),
        "mask": torch.ones(ROWS, K, dtype=torch.bool),
        "src_row": ids(0, 2, 4),
        "dst_row": ids(1, 1, 3),
        "out": torch.ones(NUM, 2, 1 + K, 2, dtype=torch.int32),
    }
    return Call(
        _core.co_occurrence, arguments, indices={"src_row": (0, ROWS), "dst_row": (0, ROWS)}
    )


def walk_features() -> Call:
    arguments = {
        "base": rows_of(ROWS),
        "state": torch.ones(ROWS, 2, WIDTH),
        "a": ids(0, 2, 4),
        "b": ids(1, 1, 3),
        "decay_a": torch.ones(NUM),
        "decay_b": torch.ones(NUM),
        "out": torch.ones(NUM, 21),
    }
    indices = {"a": (-(2**63), ROWS), "b": (0, ROWS)}
    return Call(_core.walk_features, arguments, indices=indices)


def ranking(function: Callable[..., object], **more: Tensor) -> Call:
    """A function of scores, whose rows may lie apart; each has one true score."""
    arguments = {"positive": torch.ones(NUM).double(), **more}
    return Call(function, arguments, any_stride={"negative"}, any_width={"negative"})


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


def self_attention(**more: Tensor) -> Call:
    """What both passes read, for 3 sequences of 4 tokens, and 2 heads."""
    arguments = {
        "tokens": torch.ones(NUM, 4, 3, 2, WIDTH),
        "keep": torch.ones(NUM, 2, 4, 4),
        "weight": torch.ones(NUM, 2, 4, 4),
        **more,
    }
    is_back = "grad_out" in more
    function = _core.self_attend_backward if is_back else _core.self_attend
    return Call(function, arguments, optional={"keep"} if is_back else {"keep", "weight"})


def mix(function: Callable[..., None], **more: Tensor) -> Call:
    """3 rows of 4 tokens, with 2 hidden units."""
    arguments = {
        "x": torch.ones(NUM, 4, WIDTH),
        "norm_weight": torch.ones(4),
        "norm_bias": torch.ones(4),
        "hidden_weight": torch.ones(2, 4),
        "hidden_bias": torch.ones(2),
        "out_weight": torch.ones(4, 2),
        "out_bias": torch.ones(4),
        "hidden_keep": torch.ones(NUM, WIDTH, 2),
        "out_keep": torch.ones(NUM, WIDTH, 4),
        **more,
    }
    return Call(function, arguments, optional={"hidden_keep", "out_keep"})


CASES: dict[str, Callable[[], Call]] = {
    "keep_factors": lambda: Call(
        _core.keep_factors,
        {"key": ids(7), "rate": 0.5, "out": torch.ones(2, NUM)},
        numbers={"rate": [-1, 1]},
        any_length={"out"},
        any_width={"out"},
    ),
    "gelu_dropout": lambda: Call(
        _core.gelu_dropout,
        {"key": ids(7), "rate": 0.5, "x": torch.ones(NUM), "out": torch.ones(NUM)},
        numbers={"rate": [-1, 1]},
    ),
    "self_attend": lambda: self_attention(out=torch.ones(NUM, 4, 2, WIDTH)),
    "self_attend_backward": lambda: self_attention(
        grad_out=torch.ones(NUM, 4, 2, WIDTH), grad_tokens=torch.ones(NUM, 4, 3, 2, WIDTH)
    ),
    "token_mix": lambda: mix(_core.token_mix, out=torch.ones(NUM, 4, WIDTH)),
    "token_mix_backward": lambda: mix(
        _core.token_mix_backward,
        grad_out=torch.ones(NUM, 4, WIDTH),
        grad_x=torch.ones(NUM, 4, WIDTH),
        grad_parameters=torch.ones(3 * 4 + 2 + 2 * 4 * 2),
    ),
    "attend": forward,
    "attend_backward": backward,
    "gru_forward": lambda: gru(_core.gru_forward, out=torch.ones(NUM, WIDTH)),
    "gru_backward": lambda: gru(
        _core.gru_backward,
        grad_out=torch.ones(NUM, WIDTH),
        grad_gates=torch.ones(NUM, 3 * WIDTH),
        grad_own=torch.ones(NUM, WIDTH),
    ),
    "rank_scores": lambda: ranking(
        _core.rank_scores,
        negative=torch.ones(NUM, K).double(),
        out=torch.ones(NUM).double(),
    ),
    "count_above": lambda: ranking(
        _core.count_above,
        positive=torch.ones(ROWS, NUM).double(),
        negative=torch.ones(ROWS, K).double(),
        above=torch.zeros(ROWS, NUM, dtype=torch.int64),
        false_above=torch.zeros(ROWS, NUM, dtype=torch.int64),
    ),
    "compare_scores": lambda: ranking(
        _core.compare_scores,
        negative=torch.ones(ROWS, 1).double(),
        gained=torch.ones(NUM + ROWS).double(),
    ),
    "co_occurrence": co_occurrence,
    "walk_features": walk_features,
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
    "set_num_threads": simple(
        lambda: _core.set_num_threads, {"num_threads": 2}, numbers={"num_threads": [-1, 0, 2**40]}
    ),
    "set_simd_level": simple(lambda: _core.set_simd_level, {"level": _core.simd_level()}),
}
