"""Micro-batches that end where the time changes, however the stream comes."""

from __future__ import annotations

import pytest
import torch

from helpers.made_streams import pieces, small_tgn
from tgflow.events import MICRO_BATCH_END, EventBatch
from tgflow.graph import TemporalGraph
from tgflow.runtime.stream import SteppedStream
from tgflow.train.config import ContinualConfig
from tgflow.train.continual import ContinualTrainer

SIZES = [3, 25, 1, 20, 7]
TIMES = torch.repeat_interleave(torch.arange(5) * 10, torch.tensor(SIZES))


def events():
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(6, (2, len(TIMES)), generator=generator)
    return EventBatch(ends[0], 6 + ends[1], TIMES)


def parts(stream):
    """Return the times of the events between ends."""
    found = [[]]
    for batch in stream:
        if batch is MICRO_BATCH_END:
            found.append([])
        else:
            found[-1] += batch.t.tolist()
    return found


@pytest.mark.parametrize("size", [1, 4, 200])
def test_there_is_an_end_between_any_two_times_and_nowhere_else(size):
    found = parts(SteppedStream(pieces(events(), size)))
    assert found == [[10 * step] * num for step, num in enumerate(SIZES)]


def trainer():
    config = ContinualConfig(batch_size=10, mrr_negatives=2)
    return ContinualTrainer(small_tgn(edge_x_dim=0), TemporalGraph("undirected"), config)


@pytest.mark.parametrize("stop", [3, 13, 28, 39, 49])
def test_a_run_that_resumes_ends_them_where_it_would_have(stop):
    whole = trainer()
    expected = [(r.start, r.loss) for r in whole.steps(SteppedStream([events()]))]
    first, found = trainer(), []
    for record in first.steps(SteppedStream([events()])):
        found.append((record.start, record.loss))
        if record.stop == stop:
            break
    resumed = ContinualTrainer.from_checkpoint(small_tgn(edge_x_dim=0), first.checkpoint())
    found += [(r.start, r.loss) for r in resumed.steps(SteppedStream([events()[stop:]]))]
    assert found == expected
