"""Resume matrix: commands with data and features, stopped at named points, match undisturbed runs.

Each case is stopped at each point, resumed, and compared in all results: state digest, metrics,
records, score rows, dead letters. A quick run has one point for a case, and a case for each point.
"""

from __future__ import annotations

import csv
import json
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import faults
from helpers.live_runs import SMALL, Killed, figures, signal_at, untimed
from tgflow.cli import main
from tgflow.report.compare.outcome import Outcome
from tgflow.run.scores import SavedScores
from tgflow.train.step import TrainStep

SIZE, BATCH = 300, 50
STEP = ("--checkpoint-batches", 1)
AMOUNT = ("--features", "amount")
KINDS = ("--categorical", "kind", "--set", "stream.max_categories=2")
COLUMNS = ("--relation", "kind", "--weight", "amount")
TASK = ("--task", "edge", "--target", "kind", "--classes", 3, "--label-delay", "10m")
FRAUD = ("--task", "edge", "--target", "fraud", "--positive-label", "bad")
BY_ID = ("--event-id", "id", "--label-stream", "ids.csv")
BY_EDGE = ("--label-stream", "edges.csv", "--label-column", "time=found_at")
ALERTS = ("--label-delay", "10m", "--alert-budget", 4, "--replay-ratio", 1)
NODES = ("--node-features", "nodes.parquet", "--set", "graph.node_id=who")
NODES += ("--feature-scale", "auto")
COMPARED = ("--models", "jodie,tgn+pairs,slow=jodie", "--model-set", "slow.learning_rate=0.0001")
TWO_SEEDS = (*AMOUNT, "--edge-table", "disk", "--seeds", 2)
FORGETS = ("--seeds", 1, "--horizon-events", 160)
TRAIN = ("--epochs", 2, "--mrr-negatives", 5, "--checkpoint-every", 1e-6)
OFFLINE = ("--protocol", "dyglib/1", "--epochs", 2, "--checkpoint-every", 1e-6, "--seeds", 1)


@dataclass(frozen=True)
class Case:
    command: str
    flags: tuple = ()
    stream: str = "made.csv"
    scores: str | None = None

    def words(self, out):
        """Return the command line that writes to `out`."""
        scores = ("--scores", f"{out}.{self.scores}") if self.scores else ()
        small = SMALL if self.command != "compare" else (*SMALL[:2], *SMALL[4:])
        return [self.command, "-s", self.stream, "-o", out, *small, *self.flags, *scores]


CASES = {
    "run": Case("run", STEP),
    "no log": Case("run", (*STEP, "--no-log")),
    "sorted": Case("run", (*STEP, "--sort"), "mixed.csv"),
    "bad rows": Case("run", (*STEP, "--max-bad-ratio", 1), "bad.csv"),
    "features": Case("run", (*STEP, *AMOUNT, *KINDS, *COLUMNS, "-m", "tgat")),
    "disk": Case("run", (*STEP, *AMOUNT, "--edge-table", "disk", "--edge-cache", "4KiB")),
    "nodes": Case("run", (*STEP, *NODES, "-m", "tgat")),
    "task": Case("run", (*STEP, *TASK), scores="csv"),
    "initial": Case("run", (*STEP, "--init-from", "old", "--feature-scale", "none"), "new.csv"),
    "alerts": Case("run", (*STEP, *FRAUD, *AMOUNT, *ALERTS), "fraud.csv", "csv"),
    "labels by id": Case("run", (*STEP, *FRAUD, *BY_ID), "events.csv"),
    "labels by edge": Case("run", (*STEP, *FRAUD, *BY_EDGE, "--no-log"), "events.csv"),
    "csv": Case("run", STEP, scores="csv"),
    "tsv": Case("run", scores="tsv"),
    "jsonl": Case("run", scores="jsonl"),
    "parquet": Case("run", scores="parquet"),
    "compare": Case("compare", (*STEP, *COMPARED, *TASK, "--frozen-at", 120, "--seeds", 1)),
    "compare steps": Case("compare", (*STEP, "--models", "jodie", "--cut-at-steps", "--seeds", 1)),
    "compare nodes": Case("compare", (*STEP, *NODES, "--models", "recency,tgat", *FORGETS)),
    "train": Case("train", TRAIN),
    "train seeds": Case("train", (*TRAIN, *TWO_SEEDS)),
    "compare offline": Case("compare", (*OFFLINE, *COMPARED, *TASK)),
}
QUICK = {"run": "SIGINT", "features": "backward", "disk": "log", "task": "backward",
         "nodes": "checkpoint rename", "initial": "checkpoint done", "parquet": "SIGTERM",
         "csv": "scores", "alerts": "scores", "labels by id": "checkpoint manifest",
         "labels by edge": "checkpoint rename", "compare": "SIGTERM", "sorted": "checkpoint file",
         "bad rows": "letters", "train": "epoch 1"}  # fmt: skip


def fault(spec: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: faults.arm(spec)


def at_scores(monkeypatch):
    """End the run once it has written the scores of the third micro-batch."""
    write, calls = SavedScores.write, []

    def crashing(self, events, scores):
        write(self, events, scores)
        calls.append(events)
        assert len(calls) != 3, "killed here"

    monkeypatch.setattr(SavedScores, "write", crashing)


def at_backward(monkeypatch):
    """Make the third micro-batch run out of memory."""
    backward, calls = TrainStep.backward, []

    def failing(self, loss):
        calls.append(loss)
        if len(calls) == 3:
            raise MemoryError("no room")
        backward(self, loss)

    monkeypatch.setattr(TrainStep, "backward", failing)


def epoch(number):
    def arm(monkeypatch):
        from tgflow.report.compare.offline import OfflineResults

        original, calls = OfflineResults.after_epoch, []

        def killing(self, trainer):
            original(self, trainer)
            calls.append(trainer)
            if len(calls) == number:
                raise Killed

        monkeypatch.setattr(OfflineResults, "after_epoch", killing)

    return arm


POINTS = {
    "SIGTERM": lambda monkeypatch: signal_at(monkeypatch, 150, signal.SIGTERM),
    "SIGINT": lambda monkeypatch: signal_at(monkeypatch, 150, signal.SIGINT),
    "log": fault("log.before_append:3:raise"),
    "letters": fault("letters.before_write:1:eio"),
    "checkpoint file": fault("checkpoint.before_file:9:raise"),
    "checkpoint manifest": fault("checkpoint.before_manifest:1:raise"),
    "checkpoint rename": fault("checkpoint.before_rename:2:raise"),
    "checkpoint done": fault("checkpoint.after_rename:2:raise"),
    "backward": at_backward,
    "scores": at_scores,
    "epoch 1": epoch(1),
    "epoch 3": epoch(3),
    "epoch 4": epoch(4),
}


def matrix():
    for name, case in CASES.items():
        is_offline = "--epochs" in case.flags
        for point in POINTS:
            fits = point.startswith("epoch") == is_offline
            fits &= point != "scores" or case.scores is not None
            fits &= point != "log" or "--no-log" not in case.flags
            fits &= point != "letters" or name == "bad rows"
            if fits:
                marks = () if QUICK.get(name) == point else pytest.mark.slow
                yield pytest.param(case, point, id=f"{name}-{point}", marks=marks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of streams and of undisturbed runs."""
    folder, rng = tmp_path_factory.mktemp("matrix"), random.Random(5)
    rows = []
    for i in range(SIZE):
        src, dst = rng.randrange(20 if i > 150 else 12), rng.randrange(9)
        kind = ("cash", "card", "wire")[dst % 3]
        rows.append(f"acc_{src},shop_{dst},{60 * (i // 3)},{rng.random():.3f},{kind}")
    events, by_id, by_edge, fraud = [], [], [], []
    for i, row in enumerate(rows):
        src, dst, t, amount, _ = row.split(",")
        kind = "bad" if float(amount) > 0.8 else "ok"
        events.append(f"e{i},{src},{dst},{t}")
        fraud.append(f"{src},{dst},{3600 * (i // 3)},{amount},{kind}")
        for delay in rng.choice([(), (50,), (900,), (200, 4000), (300, 300)]):
            kind = rng.choice(["ok", "ok", "bad"])
            by_id.append((int(t) + delay, f"e{i},{kind},{int(t) + delay}"))
            by_edge.append((int(t) + delay, f"{src},{dst},{t},{kind},{int(t) + delay}"))
    for name, head, lines in (
        *(("events", "id,src,dst,t", events), ("fraud", "src,dst,t,amount,fraud", fraud)),
        ("ids", "id,fraud,label_time", [line for _, line in sorted(by_id)]),
        ("edges", "src,dst,t,fraud,found_at", [line for _, line in sorted(by_edge)]),
    ):
        (folder / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    bad = [row.replace(",", ",x,", 1) if i % 40 == 7 else row for i, row in enumerate(rows)]
    mixed = rng.sample(rows, len(rows))
    for name, lines in (
        *(("made", rows), ("mixed", mixed), ("bad", bad)),
        *(("first", rows[:120]), ("new", rows[120:])),
    ):
        text = "\n".join(["src,dst,t,amount,kind", *lines]) + "\n"
        (folder / f"{name}.csv").write_text(text)
    names = [*(f"acc_{i}" for i in range(20)), *(f"shop_{i}" for i in range(9))]
    nodes = {"who": names, "balance": [rng.gauss(0, 50) for _ in names]}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")
    return folder


@pytest.fixture
def whole(folder, tgflow, monkeypatch):
    """Return a function that runs a case undisturbed, once, and returns its directory."""
    monkeypatch.chdir(folder)

    def undisturbed(case):
        if "--init-from" in case.flags and not Path("old").exists():
            words = ["train", "-s", "first.csv", "-o", "old", "--epochs", 1, *SMALL]
            assert main([str(word) for word in words]) == 0
        name = f"whole-{list(CASES.values()).index(case)}"
        if not Path(name).exists():
            assert tgflow(*case.words(name)).code == 0
        return Path(name)

    yield undisturbed
    faults.arm("")


@pytest.mark.parametrize(("case", "point"), [*matrix()])
def test_resume_after_stop_at_any_point_matches_undisturbed_run(
    whole, tgflow, tmp_path, case, point
):
    expected, out, handler = whole(case), tmp_path / "out", signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        POINTS[point](patch)
        try:
            ended = tgflow(*case.words(out))
        except Killed:
            ended = None
    faults.arm("")
    if ended is not None:
        ends = {"SIGTERM": {0}, "SIGINT": {0}, "scores": {70}, "backward": {71}, "letters": {74}}
        assert ended.code in ends.get(point, {0, 70}), ended.err
        assert signal.getsignal(signal.SIGTERM) == handler
    if point.startswith("SIG") and case.command == "run" and "--init-from" not in case.flags:
        assert f"resume with: tgflow run --resume --out {out}" in ended.out
        health = json.loads((out / "health.json").read_text())
        assert (health["state"], health["reason"]) == ("stopped", point)
        assert health["position"] == 150
    if any(out.glob("checkpoints/ckpt-*")):
        shown = "".join(tgflow("info", out).out.splitlines())
        assert f"tgflow {case.command} --resume --out {out}" in shown
    if case.scores and point != "scores":  # those of events that were learned, and of no other
        learned = json.loads((out / "health.json").read_text())["position"]
        assert len(scores_of(out, case)) <= learned
    ran = tgflow(case.command, "--resume", "-o", out)
    assert ran.code == 0, ran.err
    assert left_by(out, case) == left_by(expected, case)


def left_by(out, case):
    """Return all results of a command, without timing."""
    letters = sorted((out / "dead-letters").glob("*"))
    found = {
        "scores": scores_of(out, case) if case.scores else None,
        "letters": [path.read_bytes() for path in letters],
    }
    if case.command == "compare":
        return found | compared(out)
    if case.command == "train":
        return found | trained(out)
    labels = json.loads((out / "stream.json").read_text()).get("labels")
    return found | {"run": figures(out), "labels": labels}


def compared(out):
    summary = json.loads((out / "metrics.json").read_text())
    return {
        "digest": summary.get("state_sha256"),
        "participants": {
            key: untimed({**each, "microseconds": 0})
            for key, each in summary["participants"].items()
        },
        "scores": {key: rows.tobytes() for key, rows in Outcome.read(out).scores.items()},
    }


def trained(out):
    metrics = untimed(json.loads((out / "metrics.json").read_text()))
    metrics["runs"] = [untimed(run) for run in metrics.get("runs", [])]
    manifests = sorted((out / "checkpoint").rglob("manifest.json"))
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert not (out / "checkpoints").exists(), "the model is left, and nothing else"
    return {
        "digests": [json.loads(path.read_text())["state_sha256"] for path in manifests],
        "metrics": {k: v for k, v in metrics.items() if k not in ("machine", "tables", "threads")},
        "records": [untimed(json.loads(line)) for line in lines],
    }


def rows_of(path, delimiter=","):
    return list(csv.DictReader(path.read_text().splitlines(), delimiter=delimiter))


def scores_of(out, case):
    path = Path(f"{out}.{case.scores}")
    if not path.exists():  # Parquet is written at the end
        return []
    if case.scores == "parquet":
        return pq.read_table(path).to_pylist()
    if case.scores == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return rows_of(path, "\t" if case.scores == "tsv" else ",")
