from types import SimpleNamespace

import pytest
import torch

from tgflow.nn import Pairs


def rows(num_events: int, num_negatives: int) -> SimpleNamespace:
    """A batch whose pairs are the numbers 0, 1, 2, ... in the order they are to come in."""
    number = torch.arange(num_events * (1 + num_negatives))
    negative = number[num_events:].view(num_events, num_negatives)
    return SimpleNamespace(
        src_row=number[:num_events],
        dst_row=100 + number[:num_events],
        negative_src_row=negative,
        negative_dst_row=100 + negative,
    )


def test_pairs_are_the_events_and_then_their_negatives():
    pairs = Pairs.of(rows(2, 3))
    assert pairs.num_pairs == 8
    assert pairs.src_row.tolist() == list(range(8))
    assert pairs.dst_row.tolist() == list(range(100, 108))


def test_sources_that_pairs_share_are_there_once():
    pairs = Pairs(torch.tensor([4, 2, 4, 2, 7]), torch.arange(5))
    distinct, number = pairs.distinct_sources(9)
    assert distinct.tolist() == [2, 4, 7]
    assert torch.equal(distinct[number], pairs.src_row)


@pytest.mark.parametrize("max_pairs", [1, 3, 8, 20])
def test_chunks_change_no_result(max_pairs):
    batch = rows(2, 3)
    heights = []

    def score(chunk: Pairs) -> torch.Tensor:
        heights.append(chunk.num_pairs)
        return chunk.src_row * 1000.0 + chunk.dst_row

    pairs = Pairs.of(batch)
    scores = pairs.scores(pairs.logits(score, max_pairs), batch)
    assert scores.positive.tolist() == [100, 1101]
    assert scores.negative.tolist() == [[2102, 3103, 4104], [5105, 6106, 7107]]
    assert max(heights) <= max_pairs
    assert sum(heights) == 8


@pytest.mark.parametrize(("num_events", "num_negatives"), [(0, 2), (3, 0)])
def test_pairs_of_no_events_and_of_no_negatives(num_events, num_negatives):
    batch = rows(num_events, num_negatives)
    pairs = Pairs.of(batch)
    scores = pairs.scores(pairs.logits(lambda chunk: chunk.src_row.float(), 2), batch)
    assert scores.positive.shape == (num_events,)
    assert scores.negative.shape == (num_events, num_negatives)


def test_chunks_hold_a_pair_at_least():
    with pytest.raises(ValueError, match="max_pairs must be at least 1, got 0"):
        list(Pairs.of(rows(1, 1)).chunks(0))
