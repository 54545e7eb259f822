"""What models cost the host on a GPU: launches of kernels, and operations of torch.

Each is microseconds of Python and driver and is done for every batch: the table may only fall.
Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from helpers.devices import needs_apart
from helpers.emulator.device import EmulatedDevice
from helpers.emulator.tensors import watching
from helpers.neural import AttentionCase
from tgflow.cuda.devices import register_device
from tgflow.nn import AttentionLayer, NodeMemory, TimeEncoding, aggregate
from tgflow.nn._native import gather_rows, gru_step
from tgflow.nn.attention import attend

pytestmark = needs_apart[0]


class Budget(NamedTuple):
    launches: int
    operations: int


BUDGETS = {
    "attend": (Budget(1, 3), Budget(2, 19)),
    "attend, one query for all": (Budget(1, 3), Budget(2, 21)),
    "gru step": (Budget(1, 2), Budget(1, 4)),
    "gather rows": (Budget(0, 1), Budget(1, 7)),
    "attention layer": (Budget(2, 37), Budget(3, 100)),
}
"""Of the forward and of the backward pass."""


@pytest.fixture(autouse=True)
def gpu() -> Iterator[EmulatedDevice]:
    gpu = EmulatedDevice.apart()
    register_device(gpu)
    with torch.autograd.set_multithreading_enabled(False):  # it has no thread of autograd's
        yield gpu


def made(what: str, device: torch.device) -> Callable[[], Tensor]:
    """The call, its arguments on the device."""
    name, _, variant = what.partition(", ")
    case = AttentionCase.made(20, 6, (8, 12, 4), shared=bool(variant)).to(device)
    if name == "attend":
        arguments = (case.query, case.below, case.block, case.time, case.keep)
        return lambda: attend(*arguments).inputs
    if name == "gather rows":
        return lambda: gather_rows(case.below, case.block.target)
    if name == "gru step":
        gates, own = (torch.zeros(7, n, device=device, requires_grad=True) for n in (12, 4))
        memory = torch.zeros(7, 4, device=device)
        return lambda: gru_step(gates, own, memory)
    time = TimeEncoding(4)
    layer = AttentionLayer(time, h_dim=8, edge_x_dim=12, dim=8, heads=2, dropout=0.1).to(device)
    return lambda: layer(case.below, case.block)


@pytest.mark.parametrize("what", BUDGETS)
def test_a_pass_costs_the_host_no_more(what, gpu):
    call = made(what, gpu.device)
    spent = []
    gpu.kernels.launches.clear()
    with watching() as watch:
        out = call()
    spent.append(Budget(len(gpu.kernels.launches), watch.operations.total()))
    gradient = torch.ones_like(out)
    gpu.kernels.launches.clear()
    with watching() as backward:
        out.backward(gradient)
    spent.append(Budget(len(gpu.kernels.launches), backward.operations.total()))
    assert watch.waits == backward.waits == []
    assert tuple(spent) == BUDGETS[what], (watch.operations, backward.operations)


MEMORY_BUDGETS = {
    "read": Budget(1, 2),
    "read, past": Budget(1, 2),
    "write": Budget(1, 0),
    "write, past": Budget(2, 1),
    "last messages": Budget(1, 4),
    "mean messages": Budget(2, 4),
}
"""Of a batch's events, whatever their number; see also `FEW_MESSAGES`."""


def memory_call(what: str, device: torch.device) -> Callable[[], object]:
    """The call of a memory, its arguments on the device."""
    verb, _, variant = what.partition(", ")
    src, dst, t = (torch.arange(10, device=device) + shift for shift in (0, 3, 50))
    messages = torch.zeros(20, 8, device=device)
    if "messages" in verb:
        return lambda: aggregate(src, dst, t, messages, "mean" if "mean" in verb else "last")
    memory = NodeMemory(4, 8).to(device)
    memory.keep_past(25 if variant else 0)
    mail = aggregate(src, dst, t, messages, "last")
    own, position = torch.zeros(20, 4, device=device), torch.ones(1, device=device).long()
    is_lost = torch.zeros(1, device=device).bool()[0]
    as_of = torch.zeros_like(mail.node)

    def write() -> None:
        memory.write(mail.node, own, mail.t, mail.x, mail.t, position, mail.is_last)

    def call() -> object:
        with memory.covering(20), memory.unless(is_lost):
            return write() if verb == "write" else memory.read(mail.node, as_of)

    call()  # there is room then
    return call


@pytest.mark.parametrize("what", MEMORY_BUDGETS)
def test_memory_costs_the_host_no_more(what, gpu):
    call = memory_call(what, gpu.device)
    gpu.kernels.launches.clear()
    with watching() as watch:
        call()
    assert watch.waits == []
    spent = Budget(len(gpu.kernels.launches), watch.operations.total())
    assert spent == MEMORY_BUDGETS[what], watch.operations
