"""Kernels that keep one message per node, run lane by lane, against the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.effort import cases, tries
from helpers.emulator import Emulator
from tgflow.cuda import mail
from tgflow.cuda.mail import LastMessages
from tgflow.nn import aggregate

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40)
ORDERS = cases([0, 1, 5], [0, 5])


def messages_of(src: Tensor, width: int) -> Tensor:
    return torch.randn(2 * len(src), width, generator=torch.Generator().manual_seed(len(src)))


def assert_same(src: Tensor, dst: Tensor, width: int, order: int) -> Emulator:
    """Rows of a node are equal, and the marked ones equal the CPU's bit for bit."""
    t, x, kernels = torch.arange(len(src)) * 3, messages_of(src, width), Emulator(order=order)
    found = LastMessages(kernels, src, dst, t)
    expected = aggregate(src, dst, t, x, "mean")
    place = torch.searchsorted(expected.node, found.node)
    for name in ("node", "row", "t"):
        assert torch.equal(getattr(found, name), getattr(expected, name)[place]), name
    assert torch.equal(found.is_last.nonzero().flatten(), place.bincount().cumsum(0) - 1)
    assert torch.equal(found.mean(x), expected.x[place])
    return kernels


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("few", [4096, 8], ids=["by one thread block", "by torch"])
@settings(max_examples=tries(40, 8), deadline=None)
@given(pairs=PAIRS, width=st.sampled_from([4, 3]))
def test_each_node_has_one_message(few, order, pairs, width):
    src, dst = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t().contiguous()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mail, "FEW_MESSAGES", few)
        assert_same(src, dst, width, order)


@pytest.mark.parametrize(("events", "sorted_by"), [(2048, "mail_few"), (2049, "mail_last")])
def test_many_messages_to_nodes_of_high_degree(events, sorted_by):
    generator = torch.Generator().manual_seed(events)
    src, dst = 2**31 - 2 - torch.randint(500, (2, events), generator=generator)
    kernels = assert_same(src, dst, 1, 3)
    assert kernels.launches == [sorted_by, "mail_mean_by_1"]


def test_without_messages_nothing_is_launched():
    none = torch.empty(0, dtype=torch.int64)
    kernels = Emulator()
    found = LastMessages(kernels, none, none, none)
    assert found.mean(torch.empty(0, 4)).shape == (0, 4)
    assert len(found.is_last) == 0
    assert kernels.launches == []


def test_wrong_tensors_are_refused_before_their_address_is_taken():
    good = torch.arange(3)
    for at in range(3):
        for wrong in (good.int(), good.to("meta"), good[:2], torch.arange(6)[::2]):
            columns = [good] * 3
            columns[at] = wrong
            kernels = Emulator()
            with pytest.raises(ValueError, match="must be contiguous int64"):
                LastMessages(kernels, *columns)
            assert kernels.launches == []
    with pytest.raises(ValueError, match=r"messages must be contiguous float32 \[6, D\] on cpu"):
        LastMessages(Emulator(), good, good, good).mean(torch.zeros(5, 4))
