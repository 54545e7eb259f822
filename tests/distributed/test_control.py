"""Orders and figures in each parcel, and what must be alike on all ranks."""

from __future__ import annotations

import pytest
import torch

from tgflow.distributed.control import (
    CHECKSUM_SPEC,
    FIGURES_SPEC,
    ORDER_SPEC,
    Order,
    RankFigures,
    check_alike,
    checksum,
    decide,
)
from tgflow.distributed.parcel import specs_of
from tgflow.peers import RanksDisagree, Traffic


@pytest.mark.parametrize("order", [Order.NONE, Order.CHECKPOINT | Order.STOP, ~Order.NONE])
def test_an_order_is_one_word(order):
    word = order.to_tensor()
    assert Order.from_tensor(word) == order
    assert specs_of({"order": word}) == {"order": ORDER_SPEC}


def test_figures_are_64_bytes():
    traffic = Traffic()
    traffic.count("rows", 10, 0.25)
    traffic.count("gradient", 2**40, 0.5)
    traffic.count("feed", 7, 0.125)
    asks = Order.HOLD | Order.STOP
    figures = RankFigures.of(traffic, compute_seconds=1.5, memory_bytes=2**33, asks=asks)
    assert figures == RankFigures(
        compute_seconds=1.5,
        wait_seconds=0.75,
        memory_bytes=2**33,
        gradient_bytes=2**40,
        rows_bytes=10,
        query_bytes=0,
        other_bytes=7,
        asks=asks,
    )
    sent = figures.to_tensor()
    assert RankFigures.from_tensor(sent) == figures
    assert specs_of({"figures": sent}) == {"figures": FIGURES_SPEC}
    assert sent.nbytes == 64


def test_rank_0_orders_what_any_rank_asks_for():
    everyone = [RankFigures(), RankFigures(asks=Order.HOLD), RankFigures(asks=Order.STOP)]
    assert decide(Order.CHECKPOINT, everyone) == Order.CHECKPOINT | Order.HOLD | Order.STOP
    assert decide(Order.NONE, everyone[:1]) == Order.NONE


def test_one_bit_changes_a_checksum_and_so_does_a_name():
    values = torch.rand(5, 3)
    changed = values.clone()
    changed.view(torch.int32)[4, 2] ^= 1
    sums = [
        checksum({"w": values}),
        checksum({"w": changed}),
        checksum({"v": values}),
        checksum({"w": values, "b": torch.zeros(0)}),
    ]
    assert len({int(each) for each in sums}) == 4
    assert torch.equal(checksum({"w": values.clone()}), sums[0])
    assert torch.equal(checksum({"w": values.T.contiguous().T}), sums[0])
    assert specs_of({"checksum": sums[0]}) == {"checksum": CHECKSUM_SPEC}


def test_ranks_that_hold_other_things_are_named():
    check_alike([torch.tensor([3])] * 4, "parameters")
    checksums = [torch.tensor([number]) for number in (3, 3, 4, 5)]
    with pytest.raises(RanksDisagree, match="parameters of rank 2, 3 are not those of rank 0"):
        check_alike(checksums, "parameters")
