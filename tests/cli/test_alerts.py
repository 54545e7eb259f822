"""`tgflow run --alert-budget`, `tgflow score --by event` and `GET /alerts` of a labeled stream."""

import csv
import json
import random
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import tgflow as tg
from helpers.live_runs import SMALL
from helpers.served import Client, served
from tgflow.run import build
from tgflow.run.replica import FrameReplica
from tgflow.run.serving import FramePublisher

DAY, START, SIZE, BUDGET = 86_400, 1_700_006_400, 600, 4
TASK = ("--task", "edge", "--target", "is_fraud", "--features", "amount", "--time-unit", "s")
RUN = ("run", "-s", "pay.csv", *SMALL, *TASK, "--positive-label", "fraud", "--label-delay", "1d")


@pytest.fixture
def payments(tgflow, tmp_path):
    """Write payments of six days, of which large ones are fraud; return their rows."""
    rng, rows = random.Random(4), []
    for i in range(SIZE):
        amount = round(rng.expovariate(1 / 40), 2)
        label = "fraud" if amount > 90 else "ok" if rng.random() < 0.9 else ""
        ends = f"acc_{rng.randrange(12)}", f"shop_{rng.randrange(5)}"
        rows.append((*ends, START + i * 6 * DAY // SIZE, amount, label))
    with Path("pay.csv").open("w") as file:
        csv.writer(file).writerows([("src", "dst", "t", "amount", "is_fraud"), *rows])
    return rows


def table(path):
    with Path(path).open() as file:
        return [*csv.DictReader(file)]


def test_alerts_stay_within_their_budget_with_and_without_scores(tgflow, payments):
    more = ("--alert-budget", BUDGET, "--replay-ratio", 1)
    assert tgflow(*RUN, *more, "-o", "whole", "--scores", "whole.csv").code == 0
    assert tgflow(*RUN, *more, "-o", "bare").code == 0
    rows = table("whole.csv")
    raised = [int(row["position"]) for row in rows if row["alert"] == "true"]
    days = Counter((payments[position][2] - START) // DAY for position in raised)
    assert max(days.values()) == BUDGET
    assert 0 not in days
    for path in ("whole", "bare"):
        assert tg.open_run(path).alerts.position.tolist() == raised
    labels = [payments[position][4] for position in raised]
    assert json.loads(Path("whole/metrics.json").read_text())["alerts"] == {
        "budget": BUDGET,
        "num_alerts": len(raised),
        "num_days": 6,
        "num_known": sum(label != "" for label in labels),
        "num_positive": labels.count("fraud"),
    }
    page = Path("whole/report.html").read_text()
    parts = ("Precision at k of is_fraud = fraud", "Positives caught, and cost", "alerts raised")
    assert all(part in page for part in (*parts, f"{BUDGET} a day"))


def test_top_events_have_known_labels_and_reasons_and_accounts_their_history(tgflow, payments):
    assert tgflow(*RUN, "--alert-budget", BUDGET, "-o", "r", "--scores", "s.parquet").code == 0
    rows, end = pq.read_table("s.parquet").to_pylist(), payments[-1][2]
    late = [row for row in rows if row["t"] > end - 2 * DAY]
    best = sorted(late, key=lambda row: -row["label_probability"])[:30]
    found = tgflow("score", "r", "--by", "event", "--last", "2d", "--top", 30, "--json").json
    for row, expected in zip(found, best, strict=True):
        names = ("position", "src", "dst", "t", "label_probability", "alert")
        assert {name: row[name] for name in names} == {name: expected[name] for name in names}
        *_, t, _, label = payments[row["position"]]
        assert row["label"] == (label or None if t + DAY <= end else None)
    run = tg.open_run("r")
    why = run.explain(event=best[0]["position"])
    assert found[0]["reason"] == why.reason
    assert {group.name for group in why.groups} >= {"amount", "source labels"}
    raising = max(why.groups, key=lambda group: group.logit)
    assert found[0]["reason"].startswith(f"{raising.name}: {raising.text}")
    text = tgflow("score", "r", "--by", "event", "--last", "2d").out
    assert all(part in text for part in ("is_fraud = fraud", "not known", "2023-11-", "of the"))
    accounts = tgflow("score", "r", "--by", "src", "--last", "2d", "--json").json
    assert [row["max"] for row in accounts] == sorted(row["max"] for row in accounts)[::-1]
    for row in accounts:
        own = [each for each in payments if each[0] == row["src"] and each[2] + DAY <= end]
        known = [label for *_, label in own if label]
        assert (row["known"], row["positive"]) == (len(known), known.count("fraud"))
        assert row["latest"] == ", ".join(known[::-1][:5])
        assert row["alerts"] == sum(each["alert"] for each in late if each["src"] == row["src"])
    assert tgflow("score", "r", "--by", "event", "--to", "top.csv").code == 0
    assert len(table("top.csv")) == 20


def test_served_alerts_are_those_of_the_scores(tgflow, payments):
    assert tgflow(*RUN, "--alert-budget", BUDGET, "-o", "r", "--scores", "s.csv").code == 0
    raised = [row for row in table("s.csv") if row["alert"] == "true"][::-1]
    run = tg.open_run("r")
    with served(run) as server:
        client = Client(server.endpoint.url)
        answer = client.get("/alerts")[1]
        assert len(raised) == answer["num_alerts"] > 5
        for row, expected in zip(answer["alerts"], raised, strict=True):
            for name in ("position", "src", "dst", "t"):
                assert str(row[name]) == expected[name]
            assert row["label_probability"] == float(expected["label_probability"])
            *_, t, _, label = payments[row["position"]]
            assert row["label"] == (label or None if t + DAY <= payments[-1][2] else None)
        assert answer["alerts"][0]["time"].startswith("2023-11-")
        since = raised[3]["t"]
        assert client.get(f"/alerts?since={since}&limit=2")[1]["num_alerts"] == 4
        status, why = client.post("/explain", {"event": int(raised[0]["position"])})
        assert (status, why["src"], why["of"]) == (200, raised[0]["src"], "is_fraud")
        status, why = client.post("/explain", {"event": 1, "src": "acc_1"})
        assert (status, "give it alone" in why["detail"]) == (422, True)
        client.close()


def test_replica_beside_a_run_has_its_alerts(tgflow, payments, monkeypatch):
    replicas, step = [], FramePublisher.on_step

    def followed(self, record):
        step(self, record)
        if not replicas:
            replicas.append(FrameReplica(Path("r"), self.ring, print))
        replicas[0].advance()
        assert replicas[0].predictor.position == record.stop
        expected = self._trainer.scorer.alerts.alerts
        pairs = zip(replicas[0].predictor.alerts, expected, strict=True)
        assert all(torch.equal(*pair) for pair in pairs)

    monkeypatch.setattr(build, "_serve", lambda run, publisher: None)
    monkeypatch.setattr(FramePublisher, "on_step", followed)
    assert tgflow(*RUN, "--alert-budget", BUDGET, "-o", "r", "--serve", 0).code == 0
    assert len(replicas[0].predictor.alerts.position) > 5


@pytest.mark.parametrize("flags", [(), ("--task", "edge", "--target", "kind")])
def test_alerts_without_labels_of_two_classes_are_refused(tgflow, flags):
    rows = "".join(f"a{i % 3},b{i % 2},{i},{i % 3}\n" for i in range(90))
    Path("kinds.csv").write_text(f"src,dst,t,kind\n{rows}")
    ran = tgflow("run", "-s", "kinds.csv", *SMALL, *flags, "--time-unit", "s", "--alert-budget", 5)
    text = "--alert-budget requires labels of two classes, as of --task edge --target is_fraud, got"
    assert (ran.code, f"{text} {'3 classes' if flags else '--task link'}" in ran.err) == (2, True)
    assert not Path("runs").exists()
