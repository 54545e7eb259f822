"""Calls of layer functions: attention, memory cells, dropout, walks."""

from collections.abc import Callable

import torch
from torch import Tensor

from helpers.hostile.attempts import NUM, ROWS, Call, K, ids
from tgflow import _core


def attention(**more: Tensor) -> Call:
    """Inputs of both passes, for 3 targets of 2 neighbors each, and 2 heads."""
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


def projected() -> Call:
    """3 targets of 2 neighbors each, and 2 heads with keys of width 2 and values of width 3."""
    heads, key_dim, value_dim, time_dim = 2, 2, 3, 2
    arguments = {
        "query_row": torch.ones(NUM, dtype=torch.int64),
        "query": torch.ones(heads, ROWS, key_dim),
        "time_query": torch.ones(heads, ROWS, time_dim),
        "below": torch.ones(ROWS, heads * (key_dim + value_dim)),
        "neighbor": torch.ones(NUM, K, dtype=torch.int64),
        "edges": torch.ones(ROWS, heads * (key_dim + value_dim)),
        "edge_row": torch.ones(NUM, K, dtype=torch.int64),
        "bias": torch.ones(value_dim),
        "eid": torch.ones(NUM, K, dtype=torch.int64),
        "mask": torch.ones(NUM, K, dtype=torch.bool),
        "dt": torch.ones(NUM, K),
        "frequency": torch.ones(time_dim),
        "time": torch.ones(NUM, heads * time_dim),
        "value": torch.ones(NUM, value_dim),
    }
    tables = {"below", "edges"}
    indices = dict.fromkeys(("query_row", "neighbor", "edge_row"), (0, ROWS))
    return Call(_core.attend_projected, arguments, indices, optional=tables, any_length=tables)


def version_call(function: Callable[..., None], **more: torch.Tensor) -> Call:
    arguments = {
        "clock": torch.ones(ROWS, 4, dtype=torch.int64),
        "link": torch.full((ROWS, 3), -1),
        "origin": torch.ones(ROWS, 2, dtype=torch.int64),
        "head": torch.zeros(ROWS, dtype=torch.int64),
        "counts": (ROWS, 9),
        "num_events": 50,
        "node": torch.ones(NUM, dtype=torch.int64),
        **more,
    }
    numbers = {"counts": [(-1, 9), (ROWS, -1)], "num_events": [-1]}
    return Call(function, arguments, {"node": (0, ROWS)}, numbers, any_length={"head"})


CASES: dict[str, Callable[[], Call]] = {
    "version_slots": lambda: version_call(
        _core.version_slots, position=torch.full((NUM,), 5), out=torch.zeros(NUM, dtype=torch.int64)
    ),
    "version_links": lambda: version_call(
        _core.version_links, out=torch.zeros(NUM, 3, dtype=torch.int64)
    ),
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
    "multiply": lambda: Call(
        _core.multiply,
        {
            "a": torch.ones(NUM, K),
            "b": torch.ones(K, 5),
            "out": torch.ones(NUM, 5),
            "prior": torch.ones(5),
            "rounds": False,
        },
        optional={"prior"},
        any_strides={"a", "b"},
    ),
    "attend": forward,
    "attend_backward": backward,
    "attend_projected": projected,
}
