"""Payloads: tensors of any dtype in one buffer, with checked headers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgflow.base.peers import Peers, RanksDisagree
from tgflow.ranks.parcel import Layout, exchange_parcels, specs_of

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
def test_packed_payload_round_trips(sent, step):
    [found] = exchange_parcels(Peers(), "step", step, [sent], [specs_of(sent)])
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
def test_payload_of_another_kind_or_step_is_detected_by_its_header(kind, step, specs, text):
    dtype, shape = next(iter(specs.values()))
    [buffer] = Layout(kind, specs).pack(
        step, {name: torch.ones(shape, dtype=dtype) for name in specs}, [torch.device("cpu")]
    )
    with pytest.raises(RanksDisagree, match=text):
        Layout("step", SPECS).check(11, buffer, sender=5)
