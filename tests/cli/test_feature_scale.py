"""`--feature-scale`: what an amount as feature does to models, and the same bits whoever scales."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from helpers.live_runs import same_run, write_features
from helpers.rank_runs import arguments, codes, run_ranks
from tgflow.cli import main

SEEDS = 2
SHOPS = 8
SIZE = 3_000


def write_payments(path, *, tells):
    """Write payments of 30 accounts at 8 shops, of amounts from cents to hundreds of thousands.

    Where amounts tell, each shop has prices of its own, and an account mostly goes from a shop to
    the next dearer one. Otherwise it mostly stays with a shop, and amounts are drawn at random.
    """
    rng, last = random.Random(11), [i % SHOPS for i in range(30)]
    lines = ["src,dst,t,amount"]
    for i in range(SIZE):
        account = rng.randrange(30)
        usual = (last[account] + 1) % SHOPS if tells else last[account]
        last[account] = shop = usual if rng.random() < 0.8 else rng.randrange(SHOPS)
        amount = 10.0 ** ((shop if tells else rng.uniform(0, 7)) - 2) * rng.uniform(0.9, 1.1)
        lines.append(f"{account},{30 + shop},{60 * i},{amount:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def mean_mrr(tmp_path, stream, *flags):
    """Return the mean MRR of some seeds over the last part of a run."""
    small = ("--dim", 16, "--lr", 3e-3, "--updates", 4, "--batch-size", 50, "--threads", 1)
    found = []
    for seed in range(SEEDS):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        run = ("run", "-s", stream, "-o", out, "--seed", seed, *small, *flags)
        assert main([str(x) for x in run]) == 0
        found.append(json.loads((out / "metrics.json").read_text())["test.mrr"])
    return sum(found) / SEEDS


AMOUNT = ("--features", "amount", "--feature-scale", "auto")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tgn", "tgat"])
def test_a_model_with_an_amount_that_tells_nothing_is_never_worse_than_without(tmp_path, model):
    stream = write_payments(tmp_path / "pay.csv", tells=False)
    without = mean_mrr(tmp_path, stream, "-m", model)
    assert without > 0.7
    assert mean_mrr(tmp_path, stream, "-m", model, *AMOUNT) > without - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tgn", "tgat"])
def test_a_model_with_an_amount_that_tells_all_is_better_than_without(tmp_path, model):
    """Of pairs' history, which tells as much, it reads nothing."""
    stream = write_payments(tmp_path / "pay.csv", tells=True)
    flags = ("-m", model)
    without = mean_mrr(tmp_path, stream, *flags)
    assert mean_mrr(tmp_path, stream, *flags, *AMOUNT) > without + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["auto", "log"])
def test_features_are_scaled_on_ranks_to_the_bits_of_one_process(tmp_path, scale):
    stream = write_features(tmp_path / "made.csv", 300, nodes=60)
    flags = ("--features", "f*", "--feature-scale", scale, "-m", "tgat")
    assert main(arguments(stream, tmp_path / "one", "--slices", 2, *flags)) == 0
    ends = run_ranks(tmp_path, 2, arguments(stream, tmp_path / "two", *flags))
    assert codes(ends) == [0, 0], ends
    same_run(tmp_path / "one", tmp_path / "two")
    said = json.loads(Path(tmp_path, "two", "metrics.json").read_text())["features"]["scale"]
    assert "all to mean 0 and deviation 1 by the first 300 events" in said
