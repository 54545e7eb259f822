"""Launches the attention kernels (csrc/cuda/attend.cu), with the native core's arguments."""

from __future__ import annotations

import ctypes
from ctypes import c_bool as _flag
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from tgflow.cuda.arguments import Arguments, Dim
from tgflow.cuda.launch import Kernels
from tgflow.cuda.row_lists import THREADS, RowLists, lanes_width, list_blocks, row_lists
from tgflow.cuda.structs import words

_WARPS = 2
"""Warps per thread block: few, so that a small batch reaches every multiprocessor."""
_HEADS = 2
_MOST_BLOCKS = 1 << 20
_MOST_SLOTS = (1 << 31) - 1


class AttentionInputs(TypedDict):
    """Inputs of both passes; see tgflow/attention.hpp for shapes."""

    query: Tensor
    below: Tensor | None
    neighbor: Tensor
    edge_table: Tensor | None
    edge_row: Tensor | None
    mask: Tensor
    dt: Tensor
    frequency: Tensor
    keep: Tensor | None


class _Attention(ctypes.Structure):
    """Inputs of both passes (tgflow/attention.hpp)."""

    _fields_ = (
        *words("num_targets k num_heads query"),
        ("shared_query", _flag),
        *words(
            "below num_below h_dim neighbor edge_table num_edges x_dim edge_row "
            "mask dt frequency time_dim keep"
        ),
    )


class _AttentionOut(ctypes.Structure):
    _fields_ = words("weight inputs total")


class _AttentionGradients(ctypes.Structure):
    """Gradients, given and to compute (tgflow/attention.hpp)."""

    _fields_ = words("weight inputs total query below")


class _SlotGradients(ctypes.Structure):
    _fields_ = words("kept score")


def attend(
    kernels: Kernels,
    *,
    weight: Tensor,
    inputs: Tensor,
    total: Tensor,
    **given: Unpack[AttentionInputs],
) -> None:
    """Fill weights, weighted inputs and their sums; same results as the native core.

    `weight` is the softmax, 0 in empty slots, `inputs` the sums of weight * keep * input and
    `total` those of weight * keep. A slot whose row is out of range makes its target's results NaN.
    """
    device = Arguments.beside("mask", given["mask"])
    a = _checked(device, given)
    shape = (a.num_heads, a.num_targets)
    out = _AttentionOut(
        device.address("weight", weight, torch.float32, *shape, a.k),
        device.address("inputs", inputs, torch.float32, *shape, _width(a)),
        device.address("total", total, torch.float32, *shape),
    )
    if a.num_heads * a.num_targets > 0:
        kernels.launch(f"attend_by_{_lanes_width(a, out.inputs)}", *_grid(a), a, out)


def attend_backward(
    kernels: Kernels,
    *,
    weight: Tensor,
    grad_inputs: Tensor,
    grad_total: Tensor,
    grad_query: Tensor,
    grad_below: Tensor | None,
    lists: RowLists | None = None,
    **given: Unpack[AttentionInputs],
) -> None:
    """Fill the gradients of query and below, as the native core does; bitwise deterministic.

    `lists` are the slots of `neighbor` by row of `below`, where `mask` is True; None: made here.
    """
    device = Arguments.beside("mask", given["mask"])
    a = _checked(device, given)
    shape, width = (a.num_heads, a.num_targets), _width(a)
    wanted = device.address("grad_query", grad_query, torch.float32, *given["query"].shape)
    if given["below"] is not None and grad_below is None:
        raise ValueError("grad_below must come with below, got None")
    # A shared query's gradient is the sum over all targets.
    per_target = grad_query.new_empty(*shape, width) if a.shared_query else grad_query
    gradients = _AttentionGradients(
        device.address("weight", weight, torch.float32, *shape, a.k),
        device.address("grad_inputs", grad_inputs, torch.float32, *shape, width),
        device.address("grad_total", grad_total, torch.float32, *shape),
        per_target.data_ptr() if a.shared_query else wanted,
        _address_or_0(device, "grad_below", grad_below, a.num_below, a.h_dim),
    )
    slots = weight.new_empty(2, *weight.shape)
    struct = _SlotGradients(slots[0].data_ptr(), slots[1].data_ptr())
    addresses = (gradients.inputs, gradients.query, gradients.below)
    lanes_width = _lanes_width(a, *addresses)
    if a.num_heads * a.num_targets > 0:
        name = f"attend_backward_by_{lanes_width}"
        kernels.launch(name, *_grid(a), a, gradients, struct)
    if a.shared_query:
        torch.sum(per_target, 1, keepdim=True, out=grad_query)
    if grad_below is not None and grad_below.numel() > 0:
        if lists is None:
            lists = row_lists(given["neighbor"], a.num_below, given["mask"])
        grid = (list_blocks(lists), THREADS)
        name = f"attend_below_by_{lanes_width}"
        kernels.launch(name, *grid, a, gradients, struct, lists.struct())


def _checked(device: Arguments, given: AttentionInputs) -> _Attention:
    mask, query, frequency = given["mask"], given["query"], given["frequency"]
    below, edge_table, edge_row = given["below"], given["edge_table"], given["edge_row"]
    at_mask = device.address("mask", mask, torch.bool, "N", "k")
    n, k = mask.shape
    if not 1 <= k <= n * k <= _MOST_SLOTS and n > 0:
        raise ValueError(f"mask must have from 1 to {_MOST_SLOTS} slots, got {n} times {k}")
    if edge_table is None:
        edge_row = None
    elif edge_row is None:
        raise ValueError("edge_row must come with edge_table, got None")
    at_below = _address_or_0(device, "below", below, "F", "h_dim")
    at_edges = _address_or_0(device, "edge_table", edge_table, "R", "x_dim")
    at_frequency = device.address("frequency", frequency, torch.float32, "time_dim")
    num_below, h_dim = (0, 0) if below is None else below.shape
    num_edges, x_dim = (0, 0) if edge_table is None else edge_table.shape
    device.address("query", query, torch.float32, "H", "N or 1", "D")
    heads, num_queries, width = query.shape
    is_shared = num_queries == 1 and n != 1
    _check_widths(width, h_dim, x_dim, len(frequency))
    return _Attention(
        n,
        k,
        heads,
        device.address("query", query, torch.float32, heads, 1 if is_shared else n, width),
        is_shared,
        at_below,
        num_below,
        h_dim,
        device.address("neighbor", given["neighbor"], torch.int64, n, k),
        at_edges,
        num_edges,
        x_dim,
        0 if edge_row is None else device.address("edge_row", edge_row, torch.int64, n, k),
        at_mask,
        device.address("dt", given["dt"], torch.float32, n, k),
        at_frequency,
        len(frequency),
        _address_or_0(device, "keep", given["keep"], heads, n, k),
    )


def _address_or_0(device: Arguments, name: str, tensor: Tensor | None, *shape: Dim) -> int:
    return 0 if tensor is None else device.address(name, tensor, torch.float32, *shape)


def _check_widths(found: int, h_dim: int, x_dim: int, time_dim: int) -> None:
    if found != h_dim + x_dim + time_dim:
        raise ValueError(
            f"query has width {found}, but a neighbor's inputs are {h_dim + x_dim + time_dim} "
            f"wide: {h_dim} of node states, {x_dim} of edge features (edge_x) and {time_dim} of "
            "the time encoding; build the model for the widths of its inputs"
        )


def _width(a: _Attention) -> int:
    width: int = a.h_dim + a.x_dim + a.time_dim
    return width


def _lanes_width(a: _Attention, *addresses: int) -> int:
    """Return how many numbers a lane accesses at once, given all `addresses`."""
    all_addresses = [a.query, a.below, a.edge_table, a.frequency, *addresses]
    return lanes_width([a.h_dim, a.x_dim, a.time_dim], all_addresses)


def _grid(a: _Attention) -> tuple[int, int]:
    warps = a.num_targets * -(-a.num_heads // _HEADS)
    return min(-(-warps // _WARPS), _MOST_BLOCKS), 32 * _WARPS
