"""Parcels: tensors of any dtype in one buffer, and no step is taken for another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.worlds import in_world
from tgflow.distributed.parcel import Layout, exchange_parcels, specs_of
from tgflow.peers import Alone, RanksDisagree

DTYPES = [torch.float32, torch.int64, torch.bool, torch.uint8, torch.bfloat16, torch.float64]


@st.composite
def tensors(draw):
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=6))
    return {
        f"tensor {number}": torch.arange(torch.Size(shape).numel())
        .to(draw(st.sampled_from(DTYPES)))
        .reshape(shape)
        for number, shape in enumerate(shapes)
    }


@given(sent=tensors(), step=st.integers(0, 2**62))
def test_what_was_packed_is_unpacked(sent, step):
    [found] = exchange_parcels(Alone(), "step", step, [sent], [specs_of(sent)])
    assert list(found) == list(sent)
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


SPECS = {"rows": (torch.float32, (2, 3))}


@pytest.mark.parametrize(
    ("kind", "step", "specs", "text"),
    [
        ("step", 12, SPECS, "rank 5 is at step 12 and this one at 11"),
        ("sum", 11, SPECS, "rank 5 sent other tensors than those of 'step' 11"),
        ("step", 11, {"rows": (torch.int32, (2, 3))}, "rank 5 sent other tensors"),
        ("step", 11, {"rows": (torch.float32, (3, 2))}, "rank 5 sent other tensors"),
        ("step", 11, {"other": (torch.float32, (2, 3))}, "rank 5 sent other tensors"),
    ],
)
def test_other_parcels_of_the_same_size_are_found_by_their_headers(kind, step, specs, text):
    dtype, shape = next(iter(specs.values()))
    parcel = Layout(kind, specs).pack(
        step, {name: torch.ones(shape, dtype=dtype) for name in specs}
    )
    with pytest.raises(RanksDisagree, match=text):
        Layout("step", SPECS).unpack(11, parcel, sender=5)


def disagree(peers):
    """Rank 1 is a step ahead."""
    sends = [{"rows": torch.ones(5)}] * peers.world
    specs = [specs_of(each) for each in sends]
    exchange_parcels(peers, "step", 7, sends, specs)
    step = 9 if peers.rank == 1 else 8
    with pytest.raises(RanksDisagree) as found:
        exchange_parcels(peers, "step", step, sends, specs)
    exchange_parcels(peers, "step", 10, sends, specs)
    return str(found.value)


def test_a_rank_at_another_step_is_an_error_on_all_ranks_and_no_crash():
    texts = in_world(3, disagree)
    assert texts == [
        "rank 1 is at step 9 and this one at 8",
        "rank 0 is at step 8 and this one at 9",
        "rank 1 is at step 9 and this one at 8",
    ]
