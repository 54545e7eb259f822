"""A saved run as an object: its scores match the later scores of the run."""

import csv
import json
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import tgflow as tg
from helpers.live_runs import SMALL, write_events
from tgflow.checkpoint import CheckpointError
from tgflow.cli import main

LEARNED = 150


def tgflow(*words):
    return main([str(word) for word in words])


def write_named(path, size=230):
    """Write the events of `write_events` between named accounts and shops."""
    numbers = write_events(path.with_suffix(".numbers"), size).read_text().splitlines()[1:]
    events = [line.split(",") for line in numbers]
    lines = [f"acc_{src},shop_{dst},{t}" for src, dst, t in events]
    path.write_text("src,dst,t\n" + "\n".join(lines) + "\n")
    return [line.split(",") for line in lines]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a stream, a run that has learned the first events, and its lines."""
    folder = tmp_path_factory.mktemp("asked")
    events = write_named(folder / "pay.csv")
    flags = ["-s", folder / "pay.csv", "-o", folder / "pay", "--id-kind", "string", *SMALL]
    flags += ["--direction", "bipartite", "--scores", folder / "scores.csv"]
    assert tgflow("run", *flags, "--limit", LEARNED) == 0
    return folder, events


@pytest.fixture(scope="module")
def run(made):
    return tg.open_run(made[0] / "pay")


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_answer_matches_the_later_score_of_the_run(made, tmp_path):
    folder, events = made
    src, dst, t = events[LEARNED]
    flags = ["-s", folder / "pay.csv", "-o", tmp_path / "on", "--id-kind", "string", *SMALL]
    flags += ["--direction", "bipartite", "--scores", tmp_path / "on.csv", "--resume"]
    assert tgflow("run", *flags, "--limit", LEARNED) == 0
    before = snapshot(tmp_path / "on")
    answer = tg.open_run(tmp_path / "on").score(src, dst, int(t))
    assert snapshot(tmp_path / "on") == before, "questions change nothing"
    assert tgflow("run", "--resume", "-o", tmp_path / "on", "--limit", LEARNED + 1) == 0
    with (tmp_path / "on.csv").open() as file:
        row = list(csv.DictReader(file))[LEARNED]
    assert [row["src"], row["dst"], row["t"]] == [src, dst, t]
    assert answer.src == [src]
    assert answer.dst == [dst]
    for name in ("logit", "probability", "anomaly"):
        found = float(getattr(answer, name)[0])
        assert found == pytest.approx(float(row[name]), rel=1e-5, abs=1e-5), name


def test_query_times_are_in_the_unit_of_the_stream(run):
    now = run.graph.log.t_last + 60
    pair = (["acc_1"], ["shop_2"])
    by_number = run.score(*pair, now).logit
    assert torch.equal(by_number, run.score(*pair, datetime.fromtimestamp(now, UTC)).logit)
    assert torch.equal(by_number, run.score(*pair, [now]).logit)
    with pytest.raises(ValueError, match="is between two ticks of the run, which are 1 s"):
        run.score(*pair, now + 0.5)
    with pytest.raises(ValueError, match="one for each of 1, got 2"):
        run.score(*pair, [now, now])


def test_invalid_queries_raise_readable_errors(run, tmp_path):
    with pytest.raises(ValueError, match="'' is no id: ids are not empty"):
        run.score("", "shop_1")
    assert run.score("acc_1", "acc_1").new == ["dst"], "ends of a bipartite stream have own ids"
    with pytest.raises(TypeError, match="ids holds integers but this map's ids are strings"):
        run.embed([1])
    with pytest.raises(ValueError, match="one length, got 2 and 1"):
        run.score(["acc_1", "acc_2"], ["shop_1"])
    with pytest.raises(ValueError, match="has no column 'dst'"):
        run.score(pa.table({"src": ["acc_1"]}))
    with pytest.raises(FileNotFoundError, match=r"is not a run: it has no config\.toml"):
        tg.open_run(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(FileNotFoundError, match="the training has not ended"):
        tg.open_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
        tg.open_run(tmp_path)
    (tmp_path / "checkpoints" / "ckpt-000000000001").mkdir()
    with pytest.raises((CheckpointError, OSError)):
        tg.open_run(tmp_path)


def test_answers_follow_continued_training(made):
    folder, _ = made
    run = tg.open_run(folder / "pay")
    before = run.score("acc_1", "shop_2", 2_000_000_000)
    trainer = run.trainer(scores=True)
    assert torch.equal(run.score("acc_1", "shop_2", 2_000_000_000).logit, before.logit)
    stream = tg.open_stream(folder / "pay.csv", time_unit="s", ids=run.ids)
    [events] = list(stream)
    records = list(trainer.steps([events[LEARNED:]]))
    assert records[-1].stop == run.position == len(events)
    assert records[0].scores.anomaly.isfinite().all(), "the calibration goes on"
    pair = run.score("acc_1", "shop_2", 2_000_000_000)
    expected = trainer.scorer.calibration.probabilities(pair.logit.double().numpy())
    assert pair.probability.tolist() == expected.tolist()
    assert not torch.equal(run.score("acc_1", "shop_2", 2_000_000_000).logit, before.logit)


def test_offline_run_answers_queries_and_continues_training(made, tmp_path):
    folder, events = made
    flags = ["-s", folder / "pay.csv", "--id-kind", "string", "--direction", "bipartite"]
    flags += ["--epochs", 1, *SMALL, "-o", tmp_path / "off"]
    assert tgflow("train", *flags) == 0
    run = tg.open_run(tmp_path / "off")
    assert run.position == len(events)
    found = run.score(events[0][0], events[0][1])
    assert float(found.probability) == pytest.approx(float(found.logit.sigmoid()))
    assert found.anomaly.isnan().all()
    trainer = run.trainer()
    assert trainer.position == len(events)
    more = tg.EventBatch(torch.tensor([0]), torch.tensor([1]), torch.tensor([2_000_000_000]))
    assert [record.start for record in trainer.steps([more])] == [len(events)]


def test_command_line_gives_the_same_answers(made, run, capsys, tmp_path):
    folder, events = made
    capsys.readouterr()
    assert tgflow("predict", folder / "pay", "--src", "acc_1", "--top-k", 2, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    expected = run.top_k("acc_1", k=2)
    assert [row["dst"] for row in rows] == expected.dst
    assert [row["logit"] for row in rows] == expected.logit.double().tolist()
    (tmp_path / "users.txt").write_text("acc_1\nacc_never\n")
    ask = ["predict", folder / "pay", "--sources", tmp_path / "users.txt", "-k", 2, "--json"]
    assert tgflow(*ask) == 0
    both = json.loads(capsys.readouterr().out)
    assert both[:2] == rows
    assert [(row["src"], row["new"]) for row in both[2:]] == 2 * [("acc_never", "src")]
    received = Counter(dst for _, dst, _ in events[:LEARNED])
    last = {dst: i for i, (_, dst, _) in enumerate(events[:LEARNED])}
    popular = sorted(received, key=lambda dst: (received[dst], last[dst]), reverse=True)
    assert [row["dst"] for row in both[2:]] == popular[:2]
    assert tgflow(*ask[:-1]) == 0
    shown = capsys.readouterr()
    assert "1 source was never seen: ranked by popularity" in shown.err
    assert "ranked_by" in shown.out
    assert tgflow("predict", folder / "pay", "--src", "acc_1", "--src", "acc_2") == 0
    shown = capsys.readouterr()
    assert "ranked" not in shown.out + shown.err
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("src,dst\n" + "\n".join(",".join(event[:2]) for event in events[:4]) + "\n")
    to = tmp_path / "scores.parquet"
    assert tgflow("predict", folder / "pay", "--pairs", pairs, "--to", to) == 0
    assert "not read" not in capsys.readouterr().err
    scored = run.score([e[0] for e in events[:4]], [e[1] for e in events[:4]])
    assert pq.read_table(to).to_pylist() == scored.to_arrow().to_pylist()
    to = tmp_path / "z.parquet"
    assert tgflow("embed", folder / "pay", "--to", to) == 0
    z = pq.read_table(to)
    assert z.num_rows == run.graph.num_nodes
    assert set(z["side"].to_pylist()) == {"src", "dst"}
    row = next(row for row in z.to_pylist() if row["id"] == "acc_1")
    found = [row[f"e{i}"] for i in range(8)]
    assert found == pytest.approx(run.embed("acc_1")[0].tolist(), abs=1e-5)
