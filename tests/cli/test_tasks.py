"""`--task`: labels learned offline and on a stream."""

import csv
import io
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score

from helpers.campaign import FROM_KAFKA, mock_broker
from helpers.effort import slow
from helpers.fake_loggers import fake_tensorboard
from helpers.kafka_io import publish
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
    assert "AUC of is_fraud = 1 0." in ran.err
    found = figures()
    assert 0 <= found["test.edge.source_average.auc"] <= 1
    assert found["test.edge.auc_low"] <= found["test.edge.auc"] <= found["test.edge.auc_high"]
    assert "<h2>Labels of is_fraud = 1</h2>" in Path("out/report.html").read_text()
    assert 'target = "is_fraud"' in Path("out/config.toml").read_text()


@pytest.mark.slow
def test_comparison_leads_with_the_figure_of_labels(tgflow, payments):
    flags = (*FRAUD, *SMALL[:2], *SMALL[4:])
    models = ("-m", "jodie", "-m", "recency,tgn", "--seeds", 1, "--preset", "none")
    ran = tgflow("compare", payments, "-o", "out", *flags, *models)
    assert ran.code == 0, ran.err
    assert ran.out.index("labels, edge") < ran.out.index("links ")
    for text in ("pair's last", "most frequent", "macro-F1", "AUC"):
        assert text in ran.out, text
    assert "AP of is_fraud = 1 0." in ran.err
    assert "accuracy of is_fraud 0." in ran.err
    summary, page = figures(), Path("out/report.html").read_bytes()
    assert "Calibration of is_fraud = 1" in page.decode()
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


def recoded(payments, name, *texts):
    """Write the payments with `texts` in place of the labels 0, 1 and, of every fifth row, more."""
    header, *rows = payments.read_text().split()
    rows = [row.rpartition(",") for row in rows]
    code = [len(texts) - 1 if len(texts) > 2 and not i % 5 else int(row[2])
            for i, row in enumerate(rows)]  # fmt: skip
    lines = [f"{row[0]},{texts[c]}" for row, c in zip(rows, code, strict=True)]
    payments.with_name(name).write_text("\n".join([header, *lines]) + "\n")
    return code


def learn(tgflow, path, *flags, out="out"):
    ran = tgflow("run", path, *FRAUD, *SMALL, "-o", out, "--scores", f"{out}.csv", *flags)
    assert ran.code == 0, ran.err
    return ran, json.loads(Path(out, "metrics.json").read_text()), rows_of(f"{out}.csv")


@pytest.mark.parametrize("texts", [("2", "1"), slow(("ok", "fraud"))])
def test_two_labels_are_classes_once_the_positive_one_is_given(
    tgflow, payments, texts, monkeypatch
):
    """Labels 0 and 1 and any two others give the same bits, and the AP is of the class named."""
    code = recoded(payments, "other.csv", *texts)
    positive, share = texts[1], f"({sum(code)} of 400 rows)"
    ran = tgflow("run", "other.csv", *FRAUD, *SMALL, "-o", "none")
    for text in (*texts, share, f"--positive-label {positive}"):
        assert (ran.code, text in ran.err) == (65, True), ran.err
    assert f"--positive-label {positive}" in " ".join(
        tgflow("info", "other.csv", "--target", "is_fraud").out.split()
    )
    expected = learn(tgflow, payments, out="plain")[1:]
    shown = fake_tensorboard(monkeypatch).shown
    flags = ("--positive-label", positive, "--log-to", "tensorboard")
    ran, found, rows = learn(tgflow, "other.csv", *flags)
    [logged] = shown.values()
    tags = {tag for _, tag, _ in logged}
    assert {f"running/edge/ap/is_fraud={positive}", "running/edge/accuracy"} <= tags
    assert f"recent:  AP of is_fraud = {positive} " in ran.err
    assert f"is positive {share}" in ran.err
    assert f"labels are those of is_fraud = {positive}" in ran.out
    page = Path("out/report.html").read_text()
    for text in ("AP of", "Calibration of", "share of", "Labels of"):
        assert f"{text} is_fraud = {positive}" in page, text
    assert (found["label_target"], found["label_positive"]) == ("is_fraud", positive)
    assert found["state_sha256"] == expected[0]["state_sha256"]
    assert {row["predicted_label"] for row in rows} == {*texts}
    numbers = [row | {"predicted_label": str(texts.index(row["predicted_label"]))} for row in rows]
    assert numbers == expected[1]
    ap = average_precision_score(code, [float(row["label_probability"]) for row in rows])
    # sums of 400 terms in another order
    assert found["prequential.edge.ap"] == pytest.approx(ap, abs=1e-12)


def test_three_labels_are_classes_alike(tgflow, payments):
    recoded(payments, "three.csv", "1", "2", "unknown")
    ran, found, rows = learn(tgflow, "three.csv", "--limit", 100)
    assert "label is_fraud: 3 classes: " in ran.err
    assert "prequential.edge.mrr" in found
    assert "label_positive" not in found
    assert "unknown" in {row["predicted_label"] for row in rows}
    ran = tgflow("run", "three.csv", *FRAUD, *SMALL, "-o", "none", "--positive-label", "1")
    assert (ran.code, "one of two labels of is_fraud" in ran.err) == (65, True), ran.err
    ran = tgflow("run", "three.csv", *FRAUD, *SMALL, "-o", "none", "--classes", 2)
    assert (ran.code, "3 distinct labels, more than 2" in ran.err) == (65, True), ran.err


def type_in(monkeypatch, path):
    buffer = io.BytesIO(Path(path).read_bytes())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer))


def as_json(path):
    """Return the rows of a CSV file as JSON, with numbers where they look like ones."""
    rows = csv.DictReader(Path(path).read_text().splitlines())
    number = {"t": int, "amount": float}
    return [
        json.dumps(
            {
                name: (int(x) if x.lstrip("-").isdigit() else x or None)
                if name == "is_fraud"
                else number.get(name, str)(x)
                for name, x in row.items()
            }
        )
        for row in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "of_files", "of_others"),
    [
        (("-1", "1", ""), (), ()),
        (("ok", "fraud", "?"), ("--positive-label", "fraud", "--unknown-label", "?"),
             ("--positive-label", "fraud", "--unknown-label", "?")),
        (("0", "1", "2"), (), ("--classes", 3)),
        (("a", "b", "c"), (), [word for each in "cab" for word in ("--label-values", each)]),
    ],
)  # fmt: skip
def test_labels_of_topics_and_stdin_give_the_answers_of_files(
    tgflow, payments, monkeypatch, texts, of_files, of_others
):
    """Labels of a stream that is not counted are announced, in their order in the file."""
    recoded(payments, "other.csv", *texts)
    lines = as_json("other.csv")
    Path("other.jsonl").write_text("\n".join(lines))
    few = ("--limit", 200)
    _, expected, rows = learn(tgflow, "other.csv", *of_files, *few)
    _, found, others = learn(tgflow, "other.jsonl", *of_files, *few, out="lines")
    assert (found["state_sha256"], others) == (expected["state_sha256"], rows)
    type_in(monkeypatch, "other.csv")
    _, found, others = learn(tgflow, "-", *of_others, *few, out="stdin")
    assert found["state_sha256"] == expected["state_sha256"]
    names = {row["predicted_label"] for row in others}
    # a label that is not named can be shown once it was seen
    assert names <= {*texts, "", "0", f"not {texts[1]}"}
    shares = [[x for name, x in row.items() if "label_prob" in name] for row in others]
    assert shares == [[x for name, x in row.items() if "label_prob" in name] for row in rows]
    with mock_broker() as broker:
        broker.create("pay", 1)
        publish(broker, "pay", [line.encode() for line in lines])
        topic = (broker.url("pay"), *FROM_KAFKA[:-1], "--id-kind", "string", "--max-time-jump")
        _, found, there = learn(tgflow, *topic, "none", *of_others, *few, out="topic")
    assert (found["state_sha256"], there) == (expected["state_sha256"], others)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "is_fraud is '2', which is none of the labels -1, 0, 1"),
        (("--label-values", "0", "--label-values", "1"), "'2', which is none of the labels 0, 1"),
        (("--label-values", "1", "--label-values", "2"), "name it, such as --positive-label 1"),
        (("--label-values", "1", "--label-values", "1.0"), "labels, got ('1', '1.0')"),
    ],
)
def test_labels_of_stdin_are_not_guessed(tgflow, payments, monkeypatch, flags, said):
    """A label that was not announced makes a bad row, which names it and the way out."""
    recoded(payments, "three.csv", "0", "1", "2")
    type_in(monkeypatch, "three.csv")
    ran = tgflow("run", "-", *FRAUD, *SMALL, "-o", "out", *flags)
    assert (ran.code in (2, 65), said in ran.err) == (True, True), ran.err
    if "none of" in said:
        assert (
            "--unknown-label 2, and if it is a class, name all of them: --label-values" in ran.err
        )


def test_more_classes_than_score_columns_keep_those_of_the_most_frequent(tgflow, payments):
    header, *rows = payments.read_text().split()
    rows = [f"{row.rpartition(',')[0]},k{min(i, 399 - i) // 2}" for i, row in enumerate(rows)]
    Path("many.csv").write_text("\n".join([header, *rows, "a1,s1,2000000,1.5,k99"]) + "\n")
    ran = tgflow("run", "many.csv", *FRAUD, *SMALL, "-o", "none")
    assert (ran.code, "pass --classes 100" in ran.err) == (65, True), ran.err
    _, found, rows = learn(tgflow, "many.csv", "--classes", 100, "--limit", 150)
    columns = [name for name in rows[0] if name.startswith("label_probability.")]
    assert len(columns) == 64
    assert columns[0] == "label_probability.k99"
    last = [float(rows[-1][name] or 0) for name in columns]
    # those of labels that no event has had yet are empty
    assert [bool(share) for share in last[:4]] == [False, True, True, True]
    assert sum(last) < 1
    assert "prequential.edge.mrr" in found


def test_unknown_labels_leave_events_that_are_links_alone(tgflow, payments):
    """They are not counted; if all are unknown, what is learned is the same as without labels."""
    recoded(payments, "some.csv", "0", "1", "?")
    _, found, rows = learn(tgflow, "some.csv", "--unknown-label", "?", "--limit", 200)
    assert (len(rows), found["label_positive"]) == (200, "1")
    assert all(row["predicted_label"] for row in rows)
    code = recoded(payments, "empty.csv", "0", "1", "")[:200]
    assert found["prequential.edge.num_positives"] == code.count(1)
    _, empty, others = learn(tgflow, "empty.csv", "--limit", 200, out="two")
    assert (empty["state_sha256"], others) == (found["state_sha256"], rows)
    recoded(payments, "none.csv", "", "")
    few = (*SMALL, *FRAUD[:2], "--limit", 200, "-o")
    labels = ("--label", "is_fraud", "--unknown-label", "?")
    assert tgflow("run", "none.csv", *few, "a", "--scores", "a.csv", *labels).code == 0
    assert tgflow("run", "none.csv", *few, "b", "--scores", "b.csv").code == 0
    _, found, rows = learn(tgflow, "none.csv", "--limit", 200, out="c")
    assert "prequential.edge.accuracy" not in found
    others = [json.loads(Path(out, "metrics.json").read_text()) for out in "ab"]
    for other in others:
        assert found["state_sha256"] == other["state_sha256"]
        assert found["prequential.ap"] == other["prequential.ap"]


@pytest.mark.slow
def test_labels_known_late_are_learned_alike_after_a_resume(tgflow, payments):
    """Until the first known label, checkpoints keep the decoder apart from what is digested."""
    header, *rows = payments.read_text().split()
    rows[:150] = [row.rpartition(",")[0] + "," for row in rows[:150]]
    payments.write_text("\n".join([header, *rows]) + "\n")
    whole = learn(tgflow, payments, "--limit", 300, out="whole")[1:]
    learn(tgflow, payments, "--limit", 100)
    resumed = learn(tgflow, payments, "--limit", 300, "--resume")[1:]
    for name in ("state_sha256", "prequential.edge.ap", "prequential.edge.auc_low"):
        assert resumed[0][name] == whole[0][name]
    assert resumed[1] == whole[1]


@pytest.mark.parametrize("ending", ["csv", slow("parquet"), slow("jsonl")])
def test_score_rows_have_the_predicted_label(tgflow, tmp_path, ending):
    rng, lines = random.Random(4), []
    for i in range(400):
        shop = rng.randrange(9)
        lines.append(f"a{rng.randrange(20)},s{shop},{60 * i},{('cash', 'card', 'wire')[shop % 3]}")
    (tmp_path / "shops.csv").write_text("\n".join(["src,dst,t,kind", *lines]) + "\n")
    kinds = ("--task", "edge", "--target", "kind", "--classes", 3, "--lr", 0.01)
    kinds += ("--set", "learning.updates=3")
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
    ran = tgflow("train", "-s", payments, "-o", "none", *flags, *FEW)
    assert (ran.code, "--positive-label mule" in ran.err) == (65, True), ran.err
    ran = tgflow("train", "-s", payments, "-o", "out", *flags, "--positive-label", "mule", *FEW)
    assert ran.code == 0, ran.err
    assert "labels are those of label = mule" in ran.out
    assert "degrees and age alone" in ran.out
    assert figures()["test.node.num_unknown"] == 1
    assert 0 <= figures()["test.node.auc"] <= 1


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
    assert ran.err.count("AUC of is_fraud = 1 ") == 2
    records = [json.loads(x) for x in Path("out/metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [0, 1]
    assert len({record["val.ap"] for record in records}) == 1  # links stay as they were
