"""Labels that come after their events: from files, over HTTP, and in runs that are killed."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from helpers.live_runs import SMALL, START, figures, same_run
from helpers.processes import environment
from tgflow.serve.client import AnswerError, Client

SIZE = 300
TASK = ("--task", "edge", "--target", "fraud")
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with events without labels, in one file and two, and labels of most."""
    rng, folder = random.Random(2), tmp_path_factory.mktemp("made")
    events, labels = [], []
    for i in range(SIZE):
        src, dst, t = rng.randrange(9), 10 + rng.randrange(5), START + 10 * i
        events.append((f"e{i}", src, dst, t))
        for delay in rng.choice([(), (50,), (200,), (900,), (200, 400), (300, 300)]):
            kind = rng.choice(["ok", "ok", "bad"])
            labels.append((t + delay, f"e{i}", src, dst, t, kind))
    labels.sort()
    cut = SIZE // 2
    early = [label for label in labels if label[0] < events[cut][3]]
    parts = {"": (events, labels), "1": (events[:cut], early)}
    parts["2"] = events[cut:], labels[len(early) :]
    for name, (some, late) in parts.items():
        lines = ["id,src,dst,t", *(",".join(map(str, each)) for each in some)]
        (folder / f"events{name}.csv").write_text("\n".join(lines) + "\n")
        by_id = [f"{key},{kind},{at}" for at, key, _, _, _, kind in late]
        edges = [f"{src},{dst},{t},{kind},{at}" for at, _, src, dst, t, kind in late]
        (folder / f"ids{name}.csv").write_text("\n".join(["id,fraud,label_time", *by_id]) + "\n")
        head = "src,dst,t,fraud,found_at"
        (folder / f"edges{name}.csv").write_text("\n".join([head, *edges]) + "\n")
    return folder


@pytest.fixture
def begin(tgflow, made):
    """Run over the events and labels, named by ids or by edges."""

    def run(out, by="ids", name="", *more):
        flags = ["--label-stream", made / f"{by}{name}.csv", "--positive-label", "bad"]
        flags += ["--event-id", "id"] if by == "ids" else ["--label-column", "time=found_at"]
        source = ["-s", made / f"events{name}.csv", "--id-kind", "int"]
        return tgflow("run", *source, "-o", out, *SMALL, *TASK, *flags, *more)

    return run


def labels_in(out):
    return json.loads((Path(out) / "stream.json").read_text())["labels"]


def test_labels_by_id_and_by_edge_give_the_same_bits(begin, tgflow):
    ran = begin("ids")
    assert ran.code == 0, ran.err
    assert "label fraud: 'bad' is positive (" in ran.err.replace("\n", " ")
    assert begin("edges", "edges").code == 0
    assert begin("no_log", "ids", "", "--set", "checkpoint.log=false").code == 0
    for other in ("edges", "no_log"):
        assert figures(Path("ids"))[::2] == figures(Path(other))[::2]
    found = labels_in("ids")
    assert found["added"] > found["corrected"] > 0
    assert found["repeated"] > 0
    assert found["delay_seconds"]["p50"] == 200
    line = "corrected, "
    shown = tgflow("info", "ids").out
    for text in (ran.out, shown):
        assert f"labels that came later: {found['added']:,} added, " in text
        assert line in text
        assert "half came within 3 min 20 s" in text


@pytest.mark.parametrize("by", cases(["ids", "edges"], ["ids"]))
def test_days_with_labels_are_learned_as_one(begin, tgflow, made, by):
    assert begin("whole", by).code == 0
    assert begin("out", by, "1").code == 0
    more = ["--append", made / "events2.csv", "--label-stream", made / f"{by}2.csv"]
    assert tgflow("run", "--resume", "-o", "out", *more).code == 0
    same_run(Path("whole"), Path("out"))


def test_ids_that_were_not_kept_are_refused(begin, tgflow, made):
    source = ["-s", made / "events1.csv", "-o", "out", *SMALL, "--event-id", "id"]
    source += ["--positive-label", "bad"]
    later = ["--label-stream", made / "ids2.csv", "--label-column", "time=label_time"]
    held = ["--label-stream", made / "edges1.csv", "--label-column", "time=found_at"]
    assert tgflow("run", *source, *TASK, *held, "--set", "labels.by=edge").code == 0
    ran = tgflow("run", "--resume", "-o", "out", "--append", made / "events2.csv", *later,
                 "--set", "labels.by=id")  # fmt: skip
    assert ran.code != 0
    assert "the ids of 150 events were not kept" in ran.err.replace("\n", " ")
    assert "--set labels.by=edge" in ran.err


def test_what_is_wrong_with_a_file_of_labels_is_named(begin, made, tmp_path):
    other = tmp_path / "labels.csv"
    for head, text in (
        ("id,fraud,at", "there is no column 'label_time'; the columns are id, fraud, at: choose "
         "with --label-column 'time=...'"),
        ("key,fraud,label_time", "there is no column 'id'; the columns are key, fraud, label_time:"
         " choose with --label-column 'event_id=...'"),
    ):  # fmt: skip
        other.write_text(f"{head}\ne1,ok,{START}\n")
        ran = begin("out", "ids", "", "--label-stream", other)
        assert (ran.code != 0, text in ran.err.replace("\n", " ")) == (True, True), ran.err
    ran = begin("out", "ids", "", "--label-column", "when=x")
    assert "there is no role 'when'; roles are 'event_id', 'src', 'dst', 't'," in ran.err


def test_opened_run_is_read_only(begin):
    assert begin("out", "ids", "1").code == 0
    with pytest.raises(TypeError, match="read-only; labels are added to a run that learns"):
        tg.open_run("out").add_labels(eid=[1], label=[1], time=[5])


def test_replica_that_follows_the_log_has_the_labels(begin, monkeypatch):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    from cli.test_serve_log import follow

    from tgflow.checkpoint import list_checkpoints
    from tgflow.run import replica as replicas

    kept = [f"checkpoint.{each}" for each in ("keep=99", "keep_log=true")]
    more = ["--checkpoint-batches", 1, *(word for each in kept for word in ("--set", each))]
    assert begin("out", "ids", "", *more).code == 0
    for each in list_checkpoints(Path("out/checkpoints"))[1:]:
        shutil.rmtree(each.path)
    monkeypatch.setattr(replicas, "_READ_SECONDS", 0.0)
    replica = replicas.LogReplica(Path("out"))
    assert begin("again", "ids", "").code == 0
    whole = tg.open_run("again").graph.log.late
    assert 0 < len(replica.predictor.graph.log.late) < len(whole)
    follow(replica)
    found = replica.predictor.graph.log.late
    for name, column in whole.read(0, len(whole)).items():
        assert torch.equal(found.read(0, len(found))[name], column)


@pytest.mark.slow
def test_labels_over_http_survive_a_kill_and_are_answered_once_on_disk(made, tmp_path):
    from cli.test_serve import start, until, until_served

    lines = (made / "events.csv").read_text().splitlines()
    grown = tmp_path / "grown.csv"
    grown.write_text("\n".join(lines[:101]) + "\n")
    words = ["run", "-s", grown, "--follow", "--event-id", "id", *TASK, *SMALL, "--serve", 0]
    words += ["-o", tmp_path / "out", "--label-token", "env:ADD", "--max-wait", "50ms"]

    def served(*more):
        process = start(*words, *more, ADD=TOKEN)
        client = Client(until_served(process), TOKEN, timeout=60)
        until(lambda: client.health()["position"] >= 100, "learned", process=process)
        return process, client

    process, client = served()
    some = [{"event_id": f"e{i}", "label": i % 2, "time": START + 2000} for i in range(60)]
    answer = client.add_labels([*some, {"event_id": "e150", "label": 1}, {"event_id": "e1"}])
    reason = "label is missing; a label has event_id, label, time"
    assert answer["refused"] == [{"row": 61, "code": "schema", "reason": reason}]
    assert (answer["added"], answer["waiting"]) == (60, 1)
    process.kill()
    process.wait()
    process, client = served("--resume")
    again = {"event_id": "e1", "label": 0, "time": START + 2100}
    answer = client.add_labels([*some, again])
    assert (answer["added"], answer["repeated"], answer["corrected"]) == (0, 60, 1)
    with pytest.raises(AnswerError, match="401: this address needs a token"):
        Client(f"http://127.0.0.1:{client._at.rpartition(':')[2]}", "x" * 16).add_labels(some)
    grown.write_text("\n".join(lines) + "\n")
    until(lambda: client.health()["position"] >= SIZE, "learned", process=process)
    process.send_signal(signal.SIGINT)
    process.communicate()
    found = labels_in(tmp_path / "out")
    assert (found["added"], found["corrected"], found["repeated"]) == (61, 1, 60)
    log = tg.open_run(tmp_path / "out").graph.log
    assert log.late.labels(log.read(0, SIZE).t.new_tensor([0, 1, 150]), SIZE - 1,
                           log.read(0, 3).label).tolist() == [0, 0, 1]  # fmt: skip
    process = start("serve", tmp_path / "out", "--serve", 0, **environment())
    with pytest.raises(AnswerError, match="403: this server is read-only"):
        Client(until_served(process), TOKEN, timeout=60).add_labels(some)
    process.send_signal(signal.SIGINT)
    process.communicate()
