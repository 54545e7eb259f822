"""Invalid entries of a comparison's checkpoint are named by key."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from helpers.made_streams import made_events, pieces, small_tgn
from tgflow.checkpoint import Checkpoint, UntrustedCheckpoint
from tgflow.graph import TemporalGraph
from tgflow.report.compare.comparison import Comparison
from tgflow.report.compare.lineup import Entrant
from tgflow.report.compare.offline import OfflineResults, Trained
from tgflow.train.config import ContinualConfig
from tgflow.train.offline import BestEpoch, OfflineProgress, PassTotals

WRONG = [None, True, -1, 2**70, "x", [], {}, [[1]]]


def lineup():
    return [Entrant("tgn", 0, small_tgn(0))]


@pytest.fixture(scope="module")
def compared():
    config = ContinualConfig(batch_size=20, mrr_negatives=5)
    found = Comparison(lineup(), TemporalGraph("undirected", 2), config)
    found.run(pieces(made_events(40), 40))
    return found.checkpoint()


def spoiled(checkpoint, keys, value):
    """Return a checkpoint with one metadata value replaced."""
    meta = copy.deepcopy(checkpoint.meta)
    *way, last = keys
    at = meta
    for key in way:
        at = at[key]
    at[last] = value
    return Checkpoint(checkpoint.sections, meta, checkpoint.sealed)


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (["participants"], {}, "participants is"),
        (["participants", 0], 7, r"participants\[0\]"),
        (["participants", 0, "key"], 7, "participants.key"),
        (["participants", 0, "failure"], True, "failure is True"),
        (["participants", 0, "is_waiting"], 1, "is_waiting is 1"),
        (["participants", 0, "seconds"], [], "seconds is"),
        (["participants", 0, "seconds", "commit"], "x", "seconds.commit"),
        (["participants", 0, "progress"], None, "progress is None"),
        (["participants", 0, "scores"], 3, "scores is 3"),
        (["participants", 0, "scores", "piece"], -1, "piece is -1"),
        (["participants", 0, "scores", "size"], 39, "scores.size is 39"),
        (["participants", 0, "scores", "start"], 1.5, "start is 1.5"),
    ],
)
def test_comparison_names_invalid_checkpoint_entries(compared, keys, value, said):
    with pytest.raises(UntrustedCheckpoint, match=said):
        Comparison.from_checkpoint(lineup(), spoiled(compared, keys, value))


def offline(value=None, *keys):
    """Return the checkpoint of an offline comparison with one value replaced."""
    results, saved = OfflineResults(), Checkpoint({})
    results.trained = [Trained("tgn/0", np.zeros((4, 3)), {"val.ap": 0.5})]
    results.save_to(saved)
    return spoiled(saved, keys, value) if keys else saved


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        *((["trained"], value, "^trained") for value in WRONG[1:] if value != []),
        *((["under_way"], value, "^under_way") for value in WRONG[1:] if value != {}),
        *(
            (["trained", 0, key], 7, rf"^trained\[0\].{key}")
            for key in ("key", "result", "failure")
        ),
    ],
)
def test_offline_comparison_names_invalid_checkpoint_entries(keys, value, said):
    with pytest.raises(UntrustedCheckpoint, match=said):
        OfflineResults(newest=offline(value, *keys))


def test_scores_of_another_shape_are_refused():
    found = offline()
    found.sealed["c000-scores"] = lambda: {"rows": torch.zeros(4, 2)}
    with pytest.raises(UntrustedCheckpoint, match="c000-scores has torch"):
        OfflineResults(newest=found)


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("key", ["epoch", "val", "has_state", "totals"])
def test_training_names_invalid_checkpoint_entries(key, value):
    if (key, value) in (("val", {}), ("has_state", True)):
        pytest.skip("this can be")
    progress, saved = OfflineProgress(), Checkpoint({})
    progress.totals = PassTotals(epochs=3)
    progress.best = BestEpoch(1, {"ap": 0.5}, {"w": torch.ones(2)}, None)
    progress.save(saved)
    with pytest.raises(UntrustedCheckpoint, match=rf"{key}"):
        OfflineProgress().load(spoiled(saved, ["best", key], value))
