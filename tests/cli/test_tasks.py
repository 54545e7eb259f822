"""`--task`: labels learned offline and on a stream."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers.effort import slow
from helpers.live_runs import SMALL

FEW = ("--epochs", 2, "--mrr-negatives", 5, *SMALL)
FRAUD = ("--features", "amount", "--task", "edge", "--target", "is_fraud")


@pytest.fixture
def payments(tmp_path):
    """Return a file of 400 payments, in which large ones are mostly fraud."""
    rng = random.Random(3)
    lines = ["src,dst,t,amount,is_fraud"]
    for i in range(400):
        amount = round(rng.uniform(0, 4), 2)
        is_fraud = int(amount > 3 and rng.random() < 0.9)
        lines.append(f"a{rng.randrange(20)},s{rng.randrange(9)},{3600 * i},{amount},{is_fraud}")
    path = tmp_path / "pay.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def figures():
    return json.loads(Path("out/metrics.json").read_text())


def test_training_learns_labels_and_compares_them_with_heuristics(tgflow, payments):
    ran = tgflow("train", "-s", payments, "-o", "out", *FRAUD, "--lr", "0.01", *FEW)
    assert ran.code == 0, ran.err
    assert ran.out.index("labels, edge") < ran.out.index("links ")
    for text in ("labels, edge", "pair's last", "source's most frequent", "macro-F1", "AUC"):
        assert text in ran.out, text
    assert "edge.auc" in ran.err
    found = figures()
    assert 0 <= found["test.edge.source_average.auc"] <= 1
    assert found["test.edge.auc_low"] <= found["test.edge.auc"] <= found["test.edge.auc_high"]
    assert "<h2>Labels</h2>" in Path("out/report.html").read_text()
    assert 'target = "is_fraud"' in Path("out/config.toml").read_text()


def test_comparison_leads_with_the_figure_of_labels(tgflow, payments):
    flags = (*FRAUD, *SMALL[:2], *SMALL[4:])
    models = ("-m", "jodie", "-m", "recency,tgn", "--seeds", 1, "--preset", "none")
    ran = tgflow("compare", payments, "-o", "out", *flags, *models)
    assert ran.code == 0, ran.err
    assert ran.out.index("labels, edge") < ran.out.index("links ")
    for text in ("pair's last", "most frequent", "macro-F1", "AUC"):
        assert text in ran.out, text
    assert "edge.ap" in ran.err
    summary, page = figures(), Path("out/report.html").read_bytes()
    assert "Calibration of labels" in page.decode()
    assert "prequential.edge.ap" not in summary["participants"]["recency/0"]
    Path("out/report.html").unlink()
    assert tgflow("compare", "--report", "out").code == 0
    assert Path("out/report.html").read_bytes() == page
    assert tgflow("compare", payments, "-o", "out", *flags, *models).code == 74
    alone = tgflow("run", payments, "-o", "out", *flags, "-m", "jodie", "--overwrite")
    assert alone.code == 0, alone.err
    for name in ("ap", "ap_low", "auc", "macro_f1", "accuracy"):
        key = f"prequential.edge.{name}"
        assert figures()[key] == summary["participants"]["jodie/0"][key]
    assert figures()["prequential.edge.majority.ap"] == summary["prequential.edge.majority.ap"]


@pytest.mark.slow
def test_offline_comparison_measures_labels_of_the_test(tgflow, payments):
    flags = (*FRAUD, *SMALL[:2], *SMALL[4:], "--epochs", 2)
    offline = ("-m", "jodie,recency", "--seeds", 1, "--preset", "none", "--protocol", "dyglib/1")
    ran = tgflow("compare", payments, "-o", "out", *flags, *offline)
    assert ran.code == 0, ran.err
    assert ran.out.index("labels, edge") < ran.out.index("links ")
    [found, recency] = figures()["participants"].values()
    assert "test.edge.ap" not in recency
    trained = tgflow("train", payments, "-o", "alone", *flags, "-m", "jodie",
                     "--protocol", "dyglib/1")  # fmt: skip
    assert trained.code == 0, trained.err
    alone = json.loads(Path("alone/metrics.json").read_text())
    assert found["test.edge.ap"] == alone["test.edge.ap"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-m", "recency,counts"), "--task edge: none of the models makes embeddings"),
        (("-m", "jodie", "--classes", 1), "--classes"),
    ],
)
def test_comparison_refuses_tasks_that_it_cannot_measure(tgflow, payments, flags, said):
    ran = tgflow("compare", payments, *FRAUD, *flags)
    assert (ran.code, said in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("ending", ["csv", slow("parquet"), slow("jsonl")])
def test_score_rows_have_the_predicted_label(tgflow, tmp_path, ending):
    rng, lines = random.Random(4), []
    for i in range(400):
        shop = rng.randrange(9)
        lines.append(f"a{rng.randrange(20)},s{shop},{60 * i},{('cash', 'card', 'wire')[shop % 3]}")
    (tmp_path / "shops.csv").write_text("\n".join(["src,dst,t,kind", *lines]) + "\n")
    kinds = ("--task", "edge", "--target", "kind", "--classes", 3, "--lr", 0.01, "--updates", 3)
    ran = tgflow("run", "-s", "shops.csv", *kinds, *SMALL, "--scores", f"whole.{ending}")
    assert ran.code == 0, ran.err
    rows = rows_of(f"whole.{ending}")
    right = [
        row["predicted_label"] == line.split(",")[-1] for row, line in zip(rows, lines, strict=True)
    ]
    assert sum(right[200:]) > 120
    assert all(0.3 < float(row["label_probability"]) <= 1 for row in rows)


def test_score_rows_with_other_columns_go_to_another_file(tgflow, payments):
    flags = ("-s", payments, *FRAUD[:2], "--label", "is_fraud", "-o", "out", *SMALL)
    assert tgflow("run", *flags, "--limit", 200, "--scores", "s.csv").code == 0
    ran = tgflow("run", *flags, *FRAUD[2:], "--allow-config-change", "--resume")
    assert (ran.code, "name another file" in ran.err) == (2, True), ran.err


def rows_of(path):
    """Return the rows of a score file."""
    if path.endswith("parquet"):
        return pq.read_table(path).to_pylist()
    text = Path(path).read_text()
    if path.endswith("jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.slow
def test_static_labels_of_nodes_are_predicted_from_embeddings(tgflow, payments, tmp_path):
    rows = [f"a{i},{'mule' if i % 3 == 0 else 'fine'}" for i in range(20)] + ["nobody,fine"]
    (tmp_path / "nodes.csv").write_text("node,label\n" + "\n".join(rows) + "\n")
    flags = ("--task", "node", "--node-labels", "nodes.csv")
    ran = tgflow("train", "-s", payments, "-o", "out", *flags, *FEW)
    assert ran.code == 0, ran.err
    assert "degrees and age alone" in ran.out
    assert figures()["test.node.num_unknown"] == 1
    assert 0 <= figures()["test.node.auc"] <= 1


@pytest.mark.slow
def test_anomalies_are_injected_and_found(tgflow, payments, tmp_path):
    flags = ("--task", "anomaly", "--inject", "structural", "--inject-share", 0.2)
    ran = tgflow("train", "-s", payments, "-m", "recency", "-o", "out", *flags)
    assert ran.code == 0, ran.err
    assert "labels, anomaly" in ran.out
    header, *places = (tmp_path / "out" / "injected.csv").read_text().split()
    assert (header, len(places)) == ("position", 12)
    assert min(map(int, places)) >= 340
    assert figures()["test.anomaly.num_positives"] == 12


@pytest.mark.slow
def test_properties_of_nodes_are_forecast(tgflow, payments, tmp_path):
    rows = [
        f"{86400 * day},a{i},s{(i + (day > 5)) % 4},1.0" for day in range(1, 17) for i in range(20)
    ]
    (tmp_path / "labels.csv").write_text("t,node,label,weight\n" + "\n".join(rows) + "\n")
    flags = ("--task", "property", "--node-labels", "labels.csv")
    ran = tgflow("train", "-s", payments, "-o", "out", *flags, *FEW)
    assert ran.code == 0, ran.err
    for text in ("labels, property", "NDCG@10", "the node's last", "moving average"):
        assert text in ran.out
    assert 0 < figures()["test.property.ndcg"] <= 1
    assert figures()["test.property.last.ndcg"] > 0.9


def test_frozen_model_learns_links_first_and_then_only_labels(tgflow, payments):
    flags = ("-m", "jodie", "--task", "node", "--target", "is_fraud", "--freeze", "--threads", 1)
    ran = tgflow("train", "-s", payments, "-o", "out", *flags, "--epochs", 2)
    assert ran.code == 0, ran.err
    assert ran.err.count("val AP") == 4
    assert ran.err.count("node.auc") == 2
    records = [json.loads(x) for x in Path("out/metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [0, 1]
    assert len({record["val.ap"] for record in records}) == 1  # links stay as they were
