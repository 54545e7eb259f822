"""Invalid entries of a comparison's checkpoint are named by key."""

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


def lineup():
    return [Entrant("tgn", 0, small_tgn(0))]


@pytest.fixture(scope="module")
def compared():
    config = ContinualConfig(batch_size=20, mrr_negatives=5)
    found = Comparison(lineup(), TemporalGraph("undirected", 2), config)
    found.run(pieces(made_events(40), 40))
    return found.checkpoint()


def offline():
    """Return the checkpoint of an offline comparison, in whose training an epoch was the best."""
    results, progress, saved = OfflineResults(), OfflineProgress(), Checkpoint({})
    results.trained = [Trained("tgn/0", np.zeros((4, 3)), {"val.ap": 0.5})]
    results.save_to(saved)
    progress.totals = PassTotals(epochs=3)
    progress.best = BestEpoch(1, {"ap": 0.5}, {"w": torch.ones(2)}, None)
    progress.save(saved)
    return saved


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
        (["participants", 0, "seconds", "commit"], "x", "seconds.commit"),
        (["participants", 0, "progress"], None, "progress is None"),
        (["participants", 0, "scores"], 3, "scores is 3"),
        (["participants", 0, "scores", "size"], 39, "scores.size is 39"),
    ],
)
def test_comparison_names_invalid_checkpoint_entries(compared, keys, value, said):
    with pytest.raises(UntrustedCheckpoint, match=said):
        Comparison.from_checkpoint(lineup(), spoiled(compared, keys, value))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["trained"], "x"),
        (["trained", 0, "result"], 7),
        (["under_way"], [[1]]),
        *((["best", key], -1) for key in ("epoch", "val", "has_state", "totals")),
    ],
)
def test_offline_comparison_names_invalid_checkpoint_entries(keys, value):
    kind = OfflineProgress().load if keys[0] == "best" else OfflineResults
    with pytest.raises(UntrustedCheckpoint, match=f"{keys[-1]}"):
        kind(spoiled(offline(), keys, value))


def test_scores_of_another_shape_are_refused():
    found = offline()
    found.sealed["c000-scores"] = lambda: {"rows": torch.zeros(4, 2)}
    with pytest.raises(UntrustedCheckpoint, match="c000-scores has torch"):
        OfflineResults(newest=found)
