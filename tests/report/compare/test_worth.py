"""The value of continued learning: by hand, by seed, with valid intervals."""

from __future__ import annotations

import numpy as np
import pytest

from tgflow.report.compare.analysis import Analysis
from tgflow.report.compare.outcome import Outcome


def outcome_of(gains, *, seeds=None, copied=None, frozen_at=0):
    """Return a comparison of a model with gains `[S, N]` over its copy, which ranks third."""
    seeds = range(len(gains)) if seeds is None else seeds
    copied = seeds if copied is None else copied
    size = gains.shape[1]
    participants, scores = {}, {}

    def add(label, seed, ranks, frozen_of):
        key = f"{label}/{seed}"
        scores[key] = np.stack([ranks, np.zeros(size), np.zeros(size)], axis=1)
        participants[key] = {
            "label": label, "seed": seed, "failure": None, "frozen_of": frozen_of,
            "frozen_at": None if frozen_of is None else frozen_at,
        }  # fmt: skip

    for row, seed in enumerate(seeds):
        add("model", seed, 1 / 3 + seed + gains[row], None)
    for seed in copied:
        add("model frozen", seed, np.full(size, 1 / 3 + seed), "model")
    return Outcome({"eid": np.arange(size)}, scores, {"participants": participants})


def test_model_and_its_copy_are_paired_by_seed():
    gains = np.random.default_rng(0).random((3, 600))
    whole = outcome_of(gains, seeds=[0, 1, 2], copied=[2, 1])  # the copy of seed 0 dropped out
    [worth] = Analysis(whole, 50, num_resamples=50).worths
    assert worth.since.mean == pytest.approx(gains[1:].mean())
    assert worth.since.high - worth.since.low < 0.2  # not the spread of seeds


def test_without_frozen_copies_there_is_no_result():
    gains = np.zeros((1, 60))
    assert Analysis(outcome_of(gains, copied=[]), 50, num_resamples=10).worths == []
    late = outcome_of(gains, frozen_at=60)  # the stream has ended before
    assert Analysis(late, 50, num_resamples=10).worths == []
