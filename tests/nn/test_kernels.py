"""Model kernels, run lane by lane, against their definitions and the native core."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.effort import cases, tries
from helpers.emulator import Emulator
from helpers.emulator.device import EmulatedDevice
from helpers.kernels import WIDTHS, AttentionCase, check_close, gru_results
from tgflow.cuda import attention, device, gru
from tgflow.cuda.row_lists import row_lists, sum_rows
from tgflow.nn._native import link_bce, note_non_finite
from tgflow.nn.attention import attend, attend_plain
from tgflow.nn.linear import _ByHead

ORDERS = cases([0, 1, 7], [0, 7])
CPU = torch.device("cpu")


def emulated(call, order=0):
    """Return the result of `call` with emulated kernels on CPU tensors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device._devices, CPU, EmulatedDevice(kernels=Emulator(order=order)))
        return call()


@settings(max_examples=tries(40, 8), deadline=None)
@given(
    size=st.integers(0, 12), k=st.integers(1, 40), heads=st.integers(1, 5),
    widths=st.sampled_from(WIDTHS[2:]), below=st.integers(1, 9),
    shared=st.booleans(), dropped=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_core_and_kernel_attention_match_the_definition_at_all_sizes(
    size, k, heads, widths, below, shared, dropped, seed
):
    case = AttentionCase.made(
        size, k, widths, heads=heads, below=below, shared=shared, dropped=dropped, seed=seed
    )
    expected, terms = case.results(attend_plain), heads * size * k  # of a row's gradient
    check_close(case.results(attend), expected, terms)
    check_close(emulated(lambda: case.results(attend), seed), expected, terms)


def test_results_do_not_depend_on_lane_order():
    case = AttentionCase.made(50, 12, (20, 8, 12), below=4)
    first = emulated(lambda: case.results(attend), 0)
    for order in (1, 5, 9):
        again = emulated(lambda: case.results(attend), order)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_masked_slots_and_padded_rows_have_no_effect():
    case = AttentionCase.made(9, 4, (5, 3, 7), below=6)
    expected = emulated(lambda: case.results(attend))
    block, mask = case.block, case.block.mask
    wrong = case.with_block(
        neighbor=torch.where(mask, block.neighbor, 2**40),
        edge_row=torch.where(mask, block.edge_row, -7),
        dt=torch.where(mask, block.dt, float("nan")),
    )
    found = emulated(lambda: wrong.results(attend))
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_missing_row_is_not_read_and_is_reported():
    case = AttentionCase.made(6, 4, (5, 3, 7), below=6, dropped=False)
    filled = tuple(case.block.mask.nonzero()[0].tolist())
    for name in ("neighbor", "edge_row"):
        for wrong in (-1, 6, 2**32, -(2**63)):
            rows = getattr(case.block, name).clone()
            rows[filled] = wrong
            block = case.with_block(**{name: rows}).block
            (inputs,) = emulated(
                lambda block=block: [attend(case.query, case.below, block, case.time, None).inputs]
            )
            is_bad = inputs.isnan().flatten(2).any(2)
            assert is_bad[:, filled[0]].all()
            assert int(is_bad.sum()) == len(is_bad)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("size", "num_rows", "width"), [(0, 3, 4), (70, 9, 12), (900, 3, 130), (9, 0, 5)]
)
def test_gathered_rows_are_summed_into_their_sources(size, num_rows, width, order):
    generator = torch.Generator().manual_seed(order)
    rows = torch.randn(size, width, generator=generator)
    row = torch.randint(max(num_rows, 1), (size,), generator=generator)
    out = torch.full((num_rows, width), 7.0)
    lists = row_lists(row, num_rows)
    sum_rows(Emulator(order=order), rows=rows, lists=lists, out=out)
    expected = torch.zeros(max(num_rows, 1), width).index_add(0, row, rows)[:num_rows]
    check_close([out], [expected])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dim", [1, 13, 32, 100, 130])
@pytest.mark.parametrize("flagged", [False, True])
def test_gru_step_matches_torch(dim, order, flagged):
    expected = gru_results(dim, 0, flagged=flagged)
    check_close(emulated(lambda: gru_results(dim, 0, flagged=flagged), order), expected)


def loss_results(positive, negative):
    """The loss of link prediction, and its gradients."""
    positive, negative = (x.clone().requires_grad_() for x in (positive, negative))
    loss = 3 * link_bce(positive, negative)
    loss.backward()
    return [loss.detach(), positive.grad, negative.grad]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("size", "m"), [(1, 1), (40, 3), (2_100, 1)])
def test_loss_kernel_matches_torch(size, m, order):
    generator = torch.Generator().manual_seed(size)
    logits = [30 * torch.randn(shape, generator=generator) for shape in ((size,), (size, m))]
    check_close(emulated(lambda: loss_results(*logits), order), loss_results(*logits))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_any_value_that_is_not_finite_sets_the_flag(where, value):
    values = [torch.ones(300), torch.full((300, 2), 3e38), torch.tensor(0.0)]
    flags = []
    for _ in range(2):
        is_lost = torch.tensor(False)
        emulated(lambda flag=is_lost: note_non_finite(values, flag) or [])
        flags.append(is_lost.item())
        values[where].view(-1)[-1] = value
    assert flags == [False, True]


COLUMNS = ("neighbor", "edge_table", "edge_row", "mask", "dt")


def attention_arguments():
    case = AttentionCase.made(3, 2, (8, 4, 4))
    return {
        "query": case.query.detach(), "below": case.below.detach(), "keep": case.keep,
        **{name: getattr(case.block, name) for name in COLUMNS},
        "frequency": case.time.frequency,
        "weight": torch.zeros(2, 3, 2), "inputs": torch.zeros(2, 3, 16), "total": torch.zeros(2, 3),
    }  # fmt: skip


def gru_arguments():
    return {
        "memory": torch.zeros(3, 8), "own": torch.zeros(3, 8), "flag": torch.ones(3, 1).long(),
        "gates": torch.zeros(3, 24), "out": torch.zeros(3, 8),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *((attention.attend, name) for name in attention_arguments()),
        *((gru.gru_forward, name) for name in gru_arguments()),
    ],
)
def test_wrong_tensors_are_refused_before_their_address_is_taken(call, name):
    made = attention_arguments if call is attention.attend else gru_arguments
    call(Emulator(), **made())
    good = made()[name]
    wrong = [
        good.to(torch.float64 if good.dtype == torch.float32 else torch.float32),
        good.to("meta"),
        good.unsqueeze(0),
        torch.cat([good, good], -1),
    ]
    if name not in ("memory", "flag"):  # whose rows may lie apart
        wrong.append(torch.stack([good, good], -1)[..., 0])
    none = SimpleNamespace()  # no launch may happen
    for tensor in wrong:
        with pytest.raises(ValueError, match=r"must be|must come|must have|has width"):
            call(none, **{**made(), name: tensor})
    with pytest.raises((TypeError, ValueError)):
        call(none, **{**made(), name: good.tolist()})


@pytest.mark.parametrize("rows", [1, 7, 96, 600])
def test_product_of_heads_and_its_gradients_match_torch(rows):
    generator = torch.Generator().manual_seed(rows)
    shapes = (3, rows, 5), (3, 5, 4), (3, rows, 4)
    x, weight, grad = (torch.randn(s, dtype=torch.double, generator=generator) for s in shapes)
    x = x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    weight.requires_grad_()
    products = _ByHead.apply(x, weight), torch.bmm(x, weight)
    torch.testing.assert_close(*products)
    torch.testing.assert_close(*(torch.autograd.grad(y, (x, weight), grad) for y in products))
