"""Calls of what layers compute: attention, memory cells, dropout, walks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from helpers.hostile.attempts import NUM, ROWS, WIDTH, Call, K, ids
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
        "base": torch.ones(ROWS, WIDTH),
        "state": torch.ones(ROWS, 2, WIDTH),
        "a": ids(0, 2, 4),
        "b": ids(1, 1, 3),
        "decay_a": torch.ones(NUM),
        "decay_b": torch.ones(NUM),
        "out": torch.ones(NUM, 21),
    }
    indices = {"a": (-(2**63), ROWS), "b": (0, ROWS)}
    return Call(_core.walk_features, arguments, indices=indices)


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
    "cosines": lambda: Call(
        _core.cosines,
        {"dt": torch.ones(NUM), "frequency": torch.ones(WIDTH), "out": torch.ones(NUM, WIDTH)},
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
    "co_occurrence": co_occurrence,
    "walk_features": walk_features,
}
