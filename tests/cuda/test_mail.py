"""Kernels that keep one message per node, run lane by lane, against the CPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import cases, tries
from helpers.emulator import Emulator
from tgflow.base.units import seconds_of
from tgflow.cuda import mail
from tgflow.cuda.mail import LastMessages, mail_age, new_mail
from tgflow.nn import TimeEncoding, aggregate

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40)
ORDERS = cases([0, 1, 5], [0, 5])


def messages_of(src, width):
    return torch.randn(2 * len(src), width, generator=torch.Generator().manual_seed(len(src)))


def assert_same(src, dst, width, order):
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


def some_clock(size):
    """Clocks of rows of which every third has no mail."""
    row = torch.arange(size)
    return torch.stack([7 * row, 9 * row + 3, (row % 3 > 0).long(), row], dim=1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("dim", "x_dim"), [(8, 4), (4, 0), (3, 2)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("is_mapped", [True, False])
def test_new_mail_has_the_memory_of_both_ends_and_features(dim, x_dim, stride, is_mapped, order):
    g = torch.Generator().manual_seed(order)
    memory, clock = torch.randn(50, dim, generator=g), some_clock(50)
    x, t = torch.randn(33, x_dim, generator=g) if x_dim else None, torch.arange(33) * 5
    src, dst = (torch.randint(20, (33, stride), generator=g)[:, 0] for _ in range(2))
    target = torch.randint(50, (20,), generator=g) if is_mapped else None
    own, last_update, mail = new_mail(Emulator(order=order), src, dst, target, t, memory, clock, x)
    rows = torch.stack([src, dst], dim=1)
    rows = rows if target is None else target[rows]
    assert torch.equal(own, memory[rows.flatten()])
    assert torch.equal(mail[:, :dim], memory[rows.flip(1).flatten()])
    if x is not None:
        assert torch.equal(mail[:, dim:], x.repeat_interleave(2, dim=0))
    mail_t, had_mail = clock[rows.flatten()][:, 1:3].unbind(1)
    assert torch.equal(last_update, torch.where(had_mail > 0, mail_t, t.repeat_interleave(2)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("per_second", [1, 1000, 10**6, 10**9])
def test_age_of_mail_is_encoded_as_on_the_cpu(per_second, order):
    clock, time = some_clock(40), TimeEncoding(7)
    clock[:20, 1] += 20_000_001  # more seconds than float32 counts singly
    ages = (clock[:, 1] - clock[:, 0]).float()
    clock[:, :2] *= per_second
    found = mail_age(Emulator(order=order), clock, 1 / per_second, time.frequency)
    torch.testing.assert_close(found, time(ages))
    assert torch.equal(seconds_of(clock[:, 1] - clock[:, 0], 1 / per_second).float(), ages)


def test_without_events_no_mail_is_made():
    none, kernels = torch.empty(0, dtype=torch.int64), Emulator()
    found = new_mail(kernels, none, none, None, none, torch.ones(2, 4), some_clock(2), None)
    assert [len(each) for each in found] == [0, 0, 0]
    assert mail_age(kernels, some_clock(0), 1.0, torch.ones(3)).shape == (0, 3)
    assert kernels.launches == []
