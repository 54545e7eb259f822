"""The chronological split against numpy's quantiles, and its unseen nodes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.made_streams import made_events
from tgflow.graph.events import EventBatch, empty_events
from tgflow.train.split import chronological_split


def with_times(times):
    nodes = torch.arange(len(times))
    return EventBatch(nodes % 5, nodes % 7, torch.tensor(times))


@given(
    steps=st.lists(st.integers(0, 3), min_size=12, max_size=80),
    ratios=st.sampled_from([(0.15, 0.15), (0.1, 0.2), (0.3, 0.3)]),
)
def test_split_boundaries_match_numpy(steps, ratios):
    events = with_times((1_600_000_000 + np.cumsum(steps)).tolist())
    t = events.t.numpy()
    val_time, test_time = np.quantile(t, [1 - ratios[0] - ratios[1], 1 - ratios[1]])
    expected = int((t <= val_time).sum()), int((t <= test_time).sum())
    sizes = {"val_ratio": ratios[0], "test_ratio": ratios[1]}
    if expected[0] == expected[1] or expected[1] == len(t):
        with pytest.raises(ValueError, match="the split leaves no"):
            chronological_split(events, new_node_ratio=0, **sizes)
        return
    split = chronological_split(events, new_node_ratio=0, **sizes)
    assert (split.val_start, split.test_start) == expected
    assert split.train.tolist() == list(range(expected[0]))


def test_new_nodes_are_unseen_in_training_and_seen_later():
    events = made_events(400)
    split, again, other = (chronological_split(events, seed=seed) for seed in (3, 3, 0))
    assert split.train.tolist() == again.train.tolist() != other.train.tolist()
    train = events[split.train]
    known = set(train.src.tolist()) | set(train.dst.tolist())
    everyone = set(events.src.tolist()) | set(events.dst.tolist())
    late = events[split.val_start :]
    unseen = everyone - known
    assert len(unseen) >= int(0.1 * len(everyone)) == 3  # one more node appears late
    assert unseen <= set(late.src.tolist()) | set(late.dst.tolist())
    expected = [
        src in unseen or dst in unseen
        for src, dst in zip(events.src.tolist(), events.dst.tolist(), strict=True)
    ]
    assert split.touches_new.tolist() == expected
    assert not split.touches_new[split.train].any()
    assert len(split.train) == split.val_start - sum(expected[: split.val_start])


def test_invalid_splits_are_refused():
    with pytest.raises(ValueError, match="leaves no training events: 0 events"):
        chronological_split(empty_events())
    with pytest.raises(ValueError, match="leaves no validation events"):
        chronological_split(with_times([5] * 40))
    with pytest.raises(ValueError, match=r"got 0\.5 and 0\.5"):
        chronological_split(made_events(50), val_ratio=0.5, test_ratio=0.5)
    with pytest.raises(ValueError, match="new_node_ratio"):
        chronological_split(made_events(50), new_node_ratio=1.0)
