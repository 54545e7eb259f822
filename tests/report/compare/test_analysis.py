"""The analysis of a comparison follows from the scores of each event, also read from files."""

import random
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from helpers.forged import flip_bit
from helpers.made_streams import made_events
from tgflow import EventBatch, TemporalGraph
from tgflow.report.compare.analysis import Analysis, batch_aps
from tgflow.report.compare.attributes import event_facts
from tgflow.report.compare.outcome import Outcome, OutcomeDamaged
from tgflow.report.compare.page import comparison_page
from tgflow.run.records import to_json

SIZE = 600


def graph_of(events):
    graph = TemporalGraph("undirected")
    graph.append(events)
    return graph


def participant(label, seed, *, cost=1.0, failure=None, frozen_of=None):
    parts = {"compute": cost, "commit": 0.0, "preparation": 0.0, "all": cost}
    return {
        "label": label,
        "seed": seed,
        "failure": failure,
        "frozen_of": frozen_of,
        "frozen_at": None if frozen_of is None else SIZE // 2,
        "num_parameters": 10,
        "microseconds": parts,
        "bytes": {"parameters": 40, "memory": 0, "counts": 0},
    }


def made_outcome():
    """Return a comparison of a good model, a bad one, a frozen copy, and one that dropped out."""
    rng = np.random.default_rng(0)
    facts = event_facts(graph_of(made_events(SIZE, x_dim=0)), 0, SIZE)
    participants, scores = {}, {}
    for label, gain, cost, frozen_of in (
        ("good", 2.0, 50.0, None),
        ("bad", 0.3, 5.0, None),
        ("good frozen", 1.0, 20.0, "good"),
    ):
        for seed in (0, 1):
            negative = rng.standard_normal((SIZE, 20))
            positive = rng.standard_normal(SIZE) + gain
            rank = 1 + (negative > positive[:, None]).sum(1)
            key = f"{label}/{seed}"
            scores[key] = np.stack([1 / rank, positive, negative[:, 0]], axis=1)
            participants[key] = participant(label, seed, cost=cost, frozen_of=frozen_of)
    scores["<b>lost</b>/0"] = np.where(np.arange(SIZE)[:, None] < 100, scores["bad/0"], np.nan)
    participants["<b>lost</b>/0"] = participant(
        "<b>lost</b>", 0, failure={"at": 100, "reason": "the loss is nan"}
    )
    summary = {"participants": participants, "stream": "made.csv", "batch_size": 50}
    return Outcome(facts, scores, summary)


@pytest.fixture(scope="module")
def outcome():
    return made_outcome()


@pytest.fixture(scope="module")
def analysis(outcome):
    return Analysis(outcome, 50, num_resamples=200)


def test_event_attributes_depend_only_on_strictly_earlier_events():
    columns = [0, 1, 0, 2, 0], [1, 0, 1, 1, 1], [10, 20, 20, 20, 80]
    facts = event_facts(graph_of(EventBatch(*map(torch.tensor, columns))), 0, 5)
    assert facts["num_pair"].tolist() == [0, 0, 1, 0, 2]
    assert facts["num_reverse"].tolist() == [0, 1, 0, 0, 1]
    assert facts["num_src"].tolist() == [0, 1, 1, 0, 3]
    assert facts["num_dst"].tolist() == [0, 1, 1, 1, 4]
    assert facts["pair_age"].tolist() == [-1, 10, 10, -1, 60]
    assert facts["tied"].tolist() == [False, False, True, True, False]


def written(outcome, directory):
    outcome.write(directory)
    (directory / "metrics.json").write_text(to_json(outcome.summary))
    return directory


def assert_same(found, outcome):
    assert found.facts.keys() == outcome.facts.keys()
    for name, column in outcome.facts.items():
        assert np.array_equal(found.facts[name], column), name
    for key, rows in outcome.scores.items():
        assert np.array_equal(found.scores[key], rows, equal_nan=True), key


@pytest.mark.parametrize("name", ["events.arrow", "scores.arrow"])
def test_flipped_bit_of_a_file_is_detected_or_harmless(outcome, tmp_path, name):
    path = written(outcome, tmp_path) / name
    good, num_found = path.read_bytes(), 0
    for bit in random.Random(1).sample(range(8 * len(good)), 60):
        path.write_bytes(flip_bit(good, bit))
        try:
            assert_same(Outcome.read(tmp_path), outcome)
        except OutcomeDamaged:
            num_found += 1
    assert num_found > 10


def test_better_model_leads_on_shared_events(outcome, analysis, tmp_path):
    assert_same(Outcome.read(written(outcome, tmp_path)), outcome)
    assert analysis.num_events == SIZE
    assert list(analysis.failures()) == ["<b>lost</b>/0"]
    for means in (analysis.mrr.means, analysis.ap.means):
        assert list(means) == ["good", "good frozen", "bad"]
    assert analysis.mrr.p_of_best("good") is None
    assert analysis.mrr.p_of_best("bad") < 0.05
    assert analysis.pareto() == ["bad", "good frozen", "good"]
    assert [window.stop - window.start for window in analysis.windows()] == [SIZE // 20] * 20
    drift = analysis.drift(1.0)
    assert drift["repeats"][0] < drift["repeats"][-1]
    assert drift["new nodes"][0] > 0


def test_average_precision_matches_scikit_learn_per_batch():
    rng = np.random.default_rng(1)
    positive, negative = rng.integers(0, 9, 130) / 4 + 0.5, rng.integers(0, 9, 130) / 4
    found = batch_aps(positive, negative, 50)
    for number, start in enumerate((0, 50, 100)):
        p, n = positive[start : start + 50], negative[start : start + 50]
        labels = [1] * len(p) + [0] * len(n)
        wanted = average_precision_score(labels, np.concatenate([p, n]))
        assert found[number] == pytest.approx(wanted, abs=1e-12)


def test_slices_partition_the_events(analysis):
    num = {each.name: each.num for each in analysis.slices}
    kinds = ("pair repeated", "reversed only", "new pair of known nodes", "one node new",
             "both nodes new")  # fmt: skip
    assert sum(num.get(kind, 0) for kind in kinds) == num["all events"] == SIZE
    assert sum(n for name, n in num.items() if name.startswith("source of")) == SIZE
    ages = sum(n for name, n in num.items() if name.startswith("pair ") and name.endswith("ago"))
    assert ages == num["pair repeated"] + num.get("reversed only", 0)
    whole = analysis.slices[0]
    assert whole.mrr["good"].mean == pytest.approx(analysis.mrr.means["good"].mean)
    assert whole.mrr["good"].low < whole.mrr["good"].mean < whole.mrr["good"].high


def test_comparison_page_has_all_sections(analysis):
    page = comparison_page(analysis)
    assert page == comparison_page(analysis)
    page = re.sub(' data-name="[^"]*"', "", page)
    for title in (
        "Leaderboard", "Mean reciprocal rank", "Accuracy against cost", "Differences", "Slices",
        "Drift", "Gain from continued learning", "Stream statistics", "Protocol",
    ):  # fmt: skip
        assert title in page, title
    assert "3 models on made: good is ahead" in page
    assert "&lt;b&gt;lost&lt;/b&gt;/0 dropped out at event 100: the loss is nan" in page
    assert "<b>lost" not in page
    assert not re.search(r"(src|href)=|https?://|@import", page)  # nothing else is needed
    board = page[page.index("Leaderboard") : page.index("Accuracy against cost")]
    for label, interval in analysis.mrr.means.items():
        assert f"<td>{label}</td><td>{interval.mean:.4f}" in board
    seen = analysis.facts["num_pair"] > 0
    assert f"returns, {seen.sum():,}" in board
    assert f"{analysis.reciprocal_ranks['good'][:, ~seen].mean():.4f}" in board
    assert page.count('class="dot c') == 3
    [worth] = analysis.worths
    assert (worth.origin, worth.num_events) == ("good", SIZE // 2)
    assert 0 < worth.since.low < worth.since.mean < worth.since.high
    part = page[page.index("Gain from continued learning") : page.index("Slices")]
    assert f"<td>good</td><td>{worth.since.mean:.4f}" in part
    assert f"{worth.since.low:.4f} to {worth.since.high:.4f}" in part


def test_page_of_one_model_and_few_events():
    facts = event_facts(graph_of(made_events(3, x_dim=0)), 0, 3)
    scores = {"one/0": np.array([[1.0, 0.5, 0.1], [0.5, 0.2, 0.3], [1.0, 0.9, 0.3]])}
    summary = {"participants": {"one/0": participant("one", 0)}, "batch_size": 200}
    page = comparison_page(Analysis(Outcome(facts, scores, summary), 200, num_resamples=20))
    assert "1 models" not in page
    assert "one" in page


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
