"""Labels in a comparison: those of a separate run, and the significance of their figure."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from helpers.live_runs import untimed
from helpers.made_streams import by_feature, pieces, seeded, small_tgat, small_tgn, taking_turns
from tgflow import ContinualConfig, ContinualTrainer, Recency, TemporalGraph
from tgflow.checkpoint import CheckpointError
from tgflow.report.compare import Comparison, Entrant
from tgflow.report.compare.analysis import Analysis
from tgflow.report.compare.attributes import event_facts
from tgflow.report.compare.outcome import Outcome, OutcomeDamaged
from tgflow.report.compare.page import comparison_page
from tgflow.report.compare.significance import ap_values
from tgflow.run.records import to_json
from tgflow.train.tasks import LabelTask, TaskConfig

CONFIG = ContinualConfig(batch_size=20, mrr_negatives=5, learning_rate=1e-2, mrr_every=1, seed=7)


def task_of(classes=2, kind="edge"):
    return LabelTask(TaskConfig(kind=kind, target="label", classes=classes, label_delay="5m"))


def with_decoder(make, task, seed=0):
    model = make(seed)
    seeded(lambda: task.add_decoder(model, 2), seed)
    return model


def comparison(task):
    """Return a comparison of TGN, a model without embeddings, and TGAT."""
    lineup = [Entrant("tgn", 0, with_decoder(small_tgn, task)), Entrant("recency", 0, Recency())]
    lineup.append(Entrant("tgat", 0, with_decoder(small_tgat, task)))
    return Comparison(lineup, TemporalGraph("undirected", 2), replace(CONFIG, task=task.config))


def figures(found):
    """Return the results of each model and of the rules, without timing and memory."""
    result = found.result()
    names = ("microseconds", "bytes")
    results = {
        key: untimed({name: x for name, x in each.items() if name not in names})
        for key, each in result["participants"].items()
    }
    return results, {name: x for name, x in result.items() if name.startswith("prequential.")}


@pytest.mark.parametrize(
    ("classes", "make", "name"), [(2, by_feature, "ap"), (3, taking_turns, "mrr")]
)
def test_each_model_predicts_labels_as_in_a_separate_run(classes, make, name):
    events, task = make(130), task_of(classes)
    found = comparison(task)
    found.run(pieces(events, 64))
    results, rules = figures(found)
    for key, model in (("tgn/0", small_tgn), ("tgat/0", small_tgat)):
        graph, config = TemporalGraph("undirected", 2), replace(CONFIG, data_seed=7)
        config = replace(config, seed=0, task=task.config)
        alone = ContinualTrainer(with_decoder(model, task), graph, config)
        result = untimed(alone.run(pieces(events, 50)))
        same = [each for each in result if each.startswith(("prequential.", "running."))]
        assert f"prequential.edge.{name}" in same
        assert {each: result[each] for each in same} == {
            each: (results[key] | rules)[each] for each in same
        }
    assert not [each for each in results["recency/0"] if ".edge." in each]
    assert rules


def test_comparison_without_any_decoder_is_refused():
    lineup = [Entrant("recency", 0, Recency())]
    with pytest.raises(ValueError, match="Recency has no label_decoder for the task edge"):
        Comparison(lineup, TemporalGraph(), replace(CONFIG, task=task_of().config))


def scores_and_labels(size=2_000, share=0.2):
    rng = np.random.default_rng(0)
    is_positive = rng.random(size) < share
    return (rng.standard_normal(size) + 1.2 * is_positive).round(2), is_positive


def test_influence_values_average_to_the_average_precision():
    score, is_positive = scores_and_labels()
    expected = average_precision_score(is_positive, score)
    assert ap_values(score, is_positive).mean() == pytest.approx(expected, abs=1e-12)
    tied = np.zeros(4)
    assert ap_values(tied, np.array([True, False, False, False])).mean() == pytest.approx(0.25)


def test_influence_values_spread_like_resampled_average_precision():
    score, is_positive = scores_and_labels()
    rng, values = np.random.default_rng(1), ap_values(score, is_positive)
    drawn = rng.integers(len(score), size=(400, len(score)))
    exact = [average_precision_score(is_positive[rows], score[rows]) for rows in drawn]
    assert values[drawn].mean(1).std() == pytest.approx(np.std(exact), rel=0.1)
    assert np.corrcoef(values[drawn].mean(1), exact)[0, 1] > 0.98


def made_outcome(make=by_feature, classes=2):
    task = task_of(classes)
    found = comparison(task)
    found.run(pieces(make(400), 64))
    scores = {each.key: each.scores.rows.double().numpy() for each in found.participants}
    facts = event_facts(found.graph, 0, 400, found.labels)
    return Outcome(facts, scores, {**found.result(), "batch_size": 20, "stream": "made.csv"})


@pytest.mark.parametrize(
    ("make", "classes", "name"), [(by_feature, 2, "AP"), (taking_turns, 3, "MRR")]
)
def test_page_leads_with_the_figure_of_labels(tmp_path, make, classes, name):
    outcome = made_outcome(make, classes)
    outcome.write(tmp_path)
    (tmp_path / "metrics.json").write_text(to_json(outcome.summary))
    analysis = Analysis(Outcome.read(tmp_path), 20, num_resamples=200)
    page = comparison_page(analysis)
    assert page.index(f"Best {name} of labels") < page.index("Best MRR of links")
    assert page.index("<h2>Labels</h2>") < page.index("<h2>Links</h2>")
    assert ("Calibration of label 1" in page) == (classes == 2)
    assert f"3 models on made: {next(iter(analysis.labels.means))} is ahead" in page
    assert set(analysis.labels.means) == {"tgn", "tgat"}
    head, rows = analysis.label_table()
    assert head[:4] == ("labels, edge", name, "95 %", "p")
    assert [row[0] for row in rows][2:4] == ["recency", "most frequent label"]
    assert (rows[0][3], rows[2][1], rows[3][2]) == ("best", "–", "")
    if classes == 2:
        own = outcome.summary["participants"]["tgn/0"]["prequential.edge.ap"]
        assert analysis.labels.means["tgn"].mean == pytest.approx(own, abs=0.01)  # in bins there
        base = outcome.facts["class"].mean()
        assert float(rows[3][1]) == pytest.approx(base, abs=0.05)


def test_missing_column_of_labels_is_damage(tmp_path):
    outcome = made_outcome()
    Outcome({k: x for k, x in outcome.facts.items() if k != "class"},
            {k: x[:, :3] for k, x in outcome.scores.items()}, {}).write(tmp_path)  # fmt: skip
    without = (tmp_path / "scores.arrow").read_bytes()
    outcome.write(tmp_path)
    (tmp_path / "metrics.json").write_text(to_json(outcome.summary))
    (tmp_path / "scores.arrow").write_bytes(without)
    with pytest.raises(OutcomeDamaged, match=r"scores\.arrow is damaged"):
        Outcome.read(tmp_path)


def test_damaged_figures_of_a_checkpoint_are_refused():
    found = comparison(task_of())
    found.run(pieces(by_feature(60), 60))
    saved = found.checkpoint()
    saved.sections["c000-task"] = {**saved.sections["c000-task"], "cells": torch.zeros(3, 3)}
    lineup = [each.entrant for each in comparison(task_of()).participants]
    with pytest.raises(CheckpointError, match="cells"):
        Comparison.from_checkpoint(lineup, saved)
