"""Lists of slots by row that come with batches on a GPU are those that gradients would make."""

import pytest
import torch

from helpers.devices import apart, cuda, device_of, opened
from helpers.made_streams import made_events
from helpers.plans import plan_of
from tgflow.cuda.row_lists import row_lists
from tgflow.graph import TemporalGraph
from tgflow.nn.pairs import Pairs
from tgflow.plan import Loader
from tgflow.plan.replay import ExperienceReplay

EVENTS = made_events(240)


def assert_lists(found, row, num_rows, mask=None):
    """Compare starts, and the slots that are in a list."""
    expected = row_lists(row, num_rows, mask)
    assert torch.equal(found.start.cpu(), expected.start.cpu())
    used = int(expected.start[-1])
    assert torch.equal(found.slot[:used].cpu(), expected.slot[:used].cpu())
    assert found.slot.shape == expected.slot.shape


@pytest.mark.parametrize("device", [apart, cuda])
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("captures", [False, True])
def test_lists_of_a_batch_are_those_of_its_rows_without_the_padding_that_is_cut(
    device, is_there, captures
):
    where = {"device": opened(device)} if is_there else {}
    graph = TemporalGraph.from_events(EVENTS, **where)
    plan = plan_of(graph, replay=ExperienceReplay(ratio=0.5), for_gradients=True)
    gpu = plan.gpu or device_of(device)
    for batch in Loader(plan, 0, range(12), device=gpu, captures=captures, num_threads=0):
        frontiers = [*(len(block.target) for block in batch.blocks), len(batch.nodes)]
        for block, below in zip(batch.blocks, frontiers[1:], strict=True):
            assert_lists(block.target_lists, block.target, below)
            assert_lists(block.neighbor_lists, block.neighbor, below, block.mask)
        pairs = Pairs.of(batch)
        assert_lists(batch.src_lists, pairs.src_row, frontiers[0])
        assert_lists(batch.dst_lists, pairs.dst_row, frontiers[0])


def test_batches_in_host_memory_and_without_gradients_have_no_lists():
    for device, for_gradients in (("cpu", True), ("apart", False)):
        graph = TemporalGraph.from_events(EVENTS[:60], device=opened(device))
        batch = plan_of(graph, for_gradients=for_gradients).batch(0, 2)
        assert batch.src_lists is batch.blocks[0].target_lists is None
