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
