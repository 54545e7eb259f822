"""Orders and figures in each parcel, and what must be alike on all ranks."""

from __future__ import annotations

import torch

from tgflow.distributed.control import (
    CHECKSUM_SPEC,
    Order,
    RankFigures,
    checksum,
    decide,
)
from tgflow.distributed.parcel import specs_of


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
