"""Scores of events before they are stored, with their features and the probability of a label."""

import csv
import json
import random
from pathlib import Path

import pytest

import tgflow as tg
from helpers.served import Client, served

BATCH, KNOWN = 50, 300
SMALL = ("--dim", 8, "--neighbors", 3, "--batch-size", BATCH, "--threads", 1)
TASK = ("--task", "edge", "--target", "is_fraud", "--features", "amount", "--features", "hour")


@pytest.fixture
def payments(tmp_path):
    """Return a file of payments with an amount, an hour and a label."""
    rng = random.Random(2)
    lines = ["src,dst,t,amount,hour,is_fraud"]
    for i in range(KNOWN + BATCH):
        amount = round(rng.expovariate(1 / 40), 2)
        is_fraud = int(amount > 60 and rng.random() < 0.9)
        lines.append(
            f"{rng.randrange(12)},{100 + rng.randrange(5)},{i},{amount},{i % 24},{is_fraud}"
        )
    path = tmp_path / "pay.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(path):
    with Path(path).open() as file:
        return [*csv.DictReader(file)]


def test_event_has_the_scores_that_the_run_gives_it_when_it_arrives(tgflow, payments):
    flags = ("run", "-s", payments, *SMALL, *TASK, "--time-unit", "s")
    assert tgflow(*flags, "-o", "long", "--scores", "scores.csv").code == 0
    assert tgflow(*flags, "-o", "short", "--limit", KNOWN, "--scores", "short.csv").code == 0
    event, expected = rows_of(payments)[KNOWN], rows_of("scores.csv")[KNOWN]
    run = tg.open_run("short")
    src, dst, x = (
        int(event["src"]),
        int(event["dst"]),
        [float(event["amount"]), float(event["hour"])],
    )
    found = run.score(src, dst, int(event["t"]), x=[x])
    assert float(found.logit) == pytest.approx(float(expected["logit"]), abs=1e-5)
    probability = float(expected["label_probability"])
    assert float(found.label_probability) == pytest.approx(probability, abs=1e-5)
    assert found.predicted_label == [int(expected["predicted_label"])]
    other = run.score(src, dst, int(event["t"]), x=[[500.0, 3.0]])
    assert float(other.label_probability) != pytest.approx(probability, abs=1e-5)
    assert run.score(src, dst).to_arrow().to_pylist()[0]["label_probability"] is None
    with pytest.raises(ValueError, match=r"x must have 2 finite features of each of 1 events"):
        run.score(src, dst, x=[[1.0]])

    Path("pairs.csv").write_text(f"src,dst,t,amount,hour\n{src},{dst},{event['t']},{x[0]},{x[1]}\n")
    ran = tgflow("predict", "short", "--pairs", "pairs.csv", "--json")
    [row] = json.loads(ran.out)
    assert row["label_probability"] == float(found.label_probability)
    with served(run) as server:
        client = Client(server.endpoint.url)
        question = {"src": [src, 999], "dst": [dst, dst], "at": int(event["t"]), "x": [x, x]}
        status, answer = client.post("/score", question)
        client.close()
    assert status == 200
    assert answer["scores"][0]["label_probability"] == float(found.label_probability)
    assert answer["scores"][1]["logit"] is None


def test_columns_of_pairs_that_no_score_reads_are_refused(tgflow, payments):
    flags = ("run", "-s", payments, *SMALL, "--time-unit", "s", "--limit", 100)
    assert tgflow(*flags, "-o", "links", "--features", "amount").code == 0
    Path("pairs.csv").write_text("src,dst,amount\n1,101,20.0\n")
    ran = tgflow("predict", "links", "--pairs", "pairs.csv")
    assert ran.code != 0
    assert "reads the features of an event before it is stored" in " ".join(ran.err.split())
    Path("other.csv").write_text("src,dst,currency\n1,101,EUR\n")
    ran = tgflow("predict", "links", "--pairs", "other.csv")
    assert ran.code != 0
    assert "'currency'" in ran.err
    Path("plain.csv").write_text("src,dst\n1,101\n")
    assert tgflow("predict", "links", "--pairs", "plain.csv").code == 0
