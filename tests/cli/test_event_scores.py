"""Scores of events before they are stored, with their features and the probability of a label."""

import csv
import json
import random
import re
from pathlib import Path

import pytest

import tgflow as tg
from helpers.effort import slow
from helpers.served import Client, served

BATCH, KNOWN = 50, 300
SMALL = ("--dim", 8, "--neighbors", 3, "--batch-size", BATCH, "--threads", 1, "--time-unit", "s")
TASK = ("--task", "edge", "--target", "is_fraud", "--features", "amount", "--features", "hour")
KINDS = ("--categorical", "kind", "--set", "stream.max_categories=3")


@pytest.fixture
def payments(tmp_path):
    """Return a file of payments; the last ones, at one time, have new accounts, shops and kinds."""
    rng = random.Random(2)
    lines = ["src,dst,t,amount,hour,kind,currency,is_fraud"]
    for i in range(KNOWN + BATCH):
        amount, first = round(rng.expovariate(1 / 40), 2), i < KNOWN
        is_fraud = int(amount > 60 and rng.random() < 0.9)
        src, dst = rng.randrange(12 if first else 24), 100 + rng.randrange(5 if first else 10)
        kind = rng.choice(("card", "cash") if first else ("card", "cash", "crypto", ""))
        lines.append(f"{src},{dst},{min(i, KNOWN)},{amount},{i % 24},{kind},EUR,{is_fraud}")
    path = tmp_path / "pay.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(path):
    with Path(path).open() as file:
        return [*csv.DictReader(file)]


def test_event_has_the_scores_that_the_run_gives_it_when_it_arrives(tgflow, payments):
    flags = ("run", "-s", payments, *SMALL, *TASK)
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
        question = {"src": [src], "dst": [dst], "at": int(event["t"]), "x": [x]}
        status, answer = client.post("/score", question)
        client.close()
    assert status == 200
    assert answer["scores"][0]["label_probability"] == float(found.label_probability)


def test_pairs_of_new_accounts_and_kinds_have_the_scores_of_the_run(tgflow, payments):
    flags = ("run", "-s", payments, *SMALL, *TASK, *KINDS, "--set", "graph.feature_scale=none")
    assert tgflow(*flags, "-o", "long", "--scores", "scores.csv").code == 0
    assert tgflow(*flags, "-o", "short", "--limit", KNOWN, "--scores", "short.csv").code == 0
    header, *lines = payments.read_text().splitlines()
    Path("next.csv").write_text("\n".join([header, *lines[KNOWN:]]) + "\n")
    rows = tgflow("predict", "short", "--pairs", "next.csv", "--json").json
    known = {line.split(",")[i] for line in lines[:KNOWN] for i in (0, 1)}
    code = {(0, 0): None, (1, 0): "src", (0, 1): "dst", (1, 1): "both"}
    for row, expected in zip(rows, rows_of("scores.csv")[KNOWN:], strict=True):
        for name in ("logit", "probability", "label_probability"):
            # but for rounding where a run projects neighbors once for many targets
            assert row[name] == pytest.approx(float(expected[name]), rel=1e-5, abs=1e-5), name
        ends = str(row["src"]), str(row["dst"])
        assert row["new"] == code[tuple(int(end not in known) for end in ends)]
    events, x = rows_of("next.csv"), []
    for event in events:
        numbers = {name: float(event[name]) for name in ("amount", "hour")}
        x.append(numbers | {"kind": event["kind"]})
    ends = {name: [int(event[name]) for event in events] for name in ("src", "dst")}
    with served(tg.open_run("short")) as server, tg.serve.Client(server.endpoint.url) as client:
        assert client.score(**ends, at=KNOWN, x=x)["scores"] == rows
        [one] = client.score([5], [101], x=x[0])["scores"]
        assert one == client.score([5], [101], x=x[:1])["scores"][0]
        with pytest.raises(tg.serve.AnswerError, match="422: x of event 0 has no 'hour'; give it"):
            client.score([5], [101], x={"amount": 3, "kind": "card"})
        with pytest.raises(tg.serve.AnswerError, match=r"422: x must have the columns .* by name"):
            client.score([5], [101], x=[[3.0, 1.0, 1.0, 0.0, 0.0, 0.0]])
    Path("less.csv").write_text("src,dst,amount\n1,101,20.0\n")
    ran = tgflow("predict", "short", "--pairs", "less.csv")
    assert ran.code == 65
    assert "x has no 'hour'; give it, or start the run with a value for missing ones" in ran.err


def test_missing_features_of_pairs_are_filled_as_in_the_run(tgflow, payments):
    flags = ("run", "-s", payments, *SMALL, *TASK, *KINDS, "--limit", KNOWN)
    assert tgflow(*flags, "-o", "run", "--fill-missing", 0).code == 0
    Path("less.csv").write_text("src,dst,amount,kind\n1,101,20.0,card\n1,101,,\n")
    rows = tgflow("predict", "run", "--pairs", "less.csv", "--json").json
    whole = [{"amount": 20, "hour": 0, "kind": "card"}, {"amount": 0, "hour": 0, "kind": None}]
    expected = tg.open_run("run").score([1, 1], [101, 101], x=whole).label_probability.tolist()
    assert [row["label_probability"] for row in rows] == expected


def test_columns_of_pairs_that_no_score_reads_are_ignored(tgflow, payments):
    flags = ("run", "-s", payments, *SMALL, "--limit", 100)
    assert tgflow(*flags, "-o", "links", "--features", "amount").code == 0
    Path("pairs.csv").write_text("src,dst,amount,currency\n1,101,20.0,EUR\n")
    Path("plain.csv").write_text("src,dst\n1,101\n")
    rows = [
        tgflow("predict", "links", "--pairs", p, "--json").json for p in ("pairs.csv", "plain.csv")
    ]
    assert rows[0] == rows[1]


LAYOUTS = [
    ("csv", ("--sep", ";"), lambda lines: [line.replace(",", ";") for line in lines]),
    ("csv", ("--no-header", "--columns", "src,dst,t,amount,hour,kind,_,is_fraud"),
     lambda lines: lines[1:]),
    slow("txt", ("--sep", "space", "--header", "--set", 'stream.comment="!"'),
         lambda lines: ["! made", *(line.replace(",", "  ") for line in lines)]),
    slow("log", ("--header", "--format", "csv"), lambda lines: lines),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "layout", "written"), LAYOUTS)
def test_pairs_are_read_with_the_layout_of_the_run(tgflow, payments, ending, layout, written):
    lines = [re.sub(",,", ",none,", line) for line in payments.read_text().split()]
    flags = (*SMALL, *TASK, "--limit", 100)
    expected = []
    for name, rule, given in (("plain.csv", written, layout), ("a.csv", list, ())):
        path = Path(name).with_suffix(f".{ending}" if given else ".csv")
        path.write_text("\n".join(rule(lines)) + "\n")
        out = f"run-{path.name}"
        ran = tgflow("run", "-s", path, *flags, *given, "-o", out)
        assert ran.code == 0, ran.err
        pairs = Path("pairs").with_suffix(path.suffix)
        pairs.write_text("\n".join(rule([lines[0], *lines[-20:]])) + "\n")
        ran = tgflow("predict", out, "--pairs", pairs, "--json")
        assert ran.code == 0, ran.err
        expected.append(ran.json)
    assert expected[0] == expected[1]
    assert len(expected[0]) == 20


def test_pairs_with_another_layout_are_refused_with_that_of_the_run(tgflow, payments):
    payments.write_text(payments.read_text().replace(",", ";"))
    assert tgflow("run", "-s", payments, *SMALL, "--sep", ";", "--limit", 50, "-o", "r").code == 0
    Path("pairs.csv").write_text("src,dst\n1,101\n")
    ran = tgflow("predict", "r", "--pairs", "pairs.csv")
    text = "pairs.csv is read with the layout of the run, --sep ';', and has the columns src,dst,"
    assert (ran.code, text in ran.err) == (65, True), ran.err


def test_explanation_of_a_label_adds_up_to_its_logit(tgflow, payments):
    flags = ("run", "-s", payments, *SMALL, *TASK, *KINDS, "--limit", KNOWN)
    assert tgflow(*flags, "-o", "run").code == 0
    x = {"amount": 500, "hour": 3, "kind": "gift"}
    asked = ("explain", "run", "--src", 5, "--dst", 999, "--of", "is_fraud", "--x", json.dumps(x))
    ran = tgflow(*asked, "--json", "--out", "why.html")
    assert ran.code == 0, ran.err
    why, run = ran.json, tg.open_run("run")
    total = why["baseline"] + sum(group["logit"] for group in why["groups"])
    assert total == pytest.approx(why["logit"], abs=1e-6)
    share = float(run.score(5, 999, x=x).label_probability)
    assert why["probability"] == pytest.approx(share, abs=1e-6)  # of float32 logits
    assert (why["of"], why["label"], why["new"]) == ("is_fraud", 1, "dst")
    own = [row for row in rows_of(payments)[:KNOWN] if row["src"] == "5"]
    source, destination = why["history"]
    assert source["num_known"] == len(own)
    assert source["num_positive"] == sum(int(row["is_fraud"]) for row in own)
    assert [each["label"] for each in source["latest"]] == [
        int(row["is_fraud"]) for row in own[:-9:-1]
    ]
    assert destination["num_known"] == 0
    page = Path("why.html").read_text(encoding="utf-8")
    assert page.count('<span class="bar"') > 5
    assert "Known labels of the source" in page
    out = tgflow(*asked).out
    assert "amount" in out
    assert "500" in out
    assert "source labels" in out
    assert f"events from 5: {len(own)} known is_fraud, {source['num_positive']} of them 1" in out
    with served(run) as server, tg.serve.Client(server.endpoint.url) as client:
        found = client.explain(5, 999, of="is_fraud", x=x)
    assert {key: found[key] for key in why} == why


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--of", "fraud"), "of='fraud': run explains link or is_fraud"),
        (("--of", "is_fraud"), "the label depends on the event's features: amount, hour"),
        (("--of", "is_fraud", "--x", "{"), "--x: '{' is not JSON"),
        (("--of", "is_fraud", "--x", '{"amount": 1}'), "x of event 0 has no 'hour'"),
        (("--x", '{"amount": 1, "hour": 1}'), "are for explanations of labels: of='is_fraud'"),
        (("--of", "is_fraud", "--class", "good"), "'good' is no label; there are 0, 1"),
    ],
)
def test_explanations_of_labels_that_cannot_be_are_refused(tgflow, payments, flags, message):
    made = ("run", "-s", payments, *SMALL, *TASK, "--limit", 50, "-o", "run")
    assert tgflow(*made).code == 0
    ran = tgflow("explain", "run", "--src", 5, "--dst", 101, *flags)
    assert ran.code in (2, 65)
    assert message in " ".join(ran.err.split())
