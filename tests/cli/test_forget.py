"""`tgflow forget`: erasure from all files, interrupted erasures, and runs that go on afterwards."""

import base64
import json
import random
import re
import shutil
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
import torch

import tgflow as tg
from helpers import live_runs
from helpers.crash_states import RecordingFs, crash_states
from helpers.live_runs import SHARDED, SMALL, START, Killed, act_at, same_run
from tgflow.checkpoint import list_checkpoints
from tgflow.checkpoint.durable.fs import RealFs
from tgflow.graph.ids import ERASED
from tgflow.run import forget
from tgflow.run.replica import LogReplica

SLOW = pytest.mark.slow
GONE, OTHER = "zed-7", "zed-70"


def write_events(path, size=300, start=0, gone=GONE):
    """Write events of people and shops with features, labels and ids; some rows are no events."""
    rng = random.Random(3)
    lines = ["src,dst,t,amount,label,id"]
    for i in range(start, start + size):
        src = rng.choice([f"zed-{n}" for n in range(60, 75)] + 2 * [gone])
        dst = f"shop-{rng.randrange(8)}" if i % 9 else gone
        t = f"at {gone}" if i % 50 == 7 else START + 60 * (i // 2)
        lines.append(f"{src},{dst},{t},{rng.random():.3f},{rng.randrange(2)},{src}/{i}")
    path.write_text("\n".join(lines) + "\n")
    return path


FLAGS = (
    *("--features", "amount", "--event-id", "id", *SMALL),
    *("--max-bad-ratio", "0.5", "--log-format", "json"),
)


@pytest.fixture
def made(tmp_path):
    """Folder with `made.csv`: events of nodes that are integers."""
    live_runs.write_events(tmp_path / "made.csv")
    return tmp_path


@pytest.fixture
def learn(tgflow, tmp_path):
    """Learn the events into `out`, with more flags."""
    write_events(tmp_path / "events.csv")

    def run(*flags):
        ran = tgflow("run", "-s", "events.csv", "-o", "out", *FLAGS, *flags)
        assert ran.code == 0, ran.err
        return ran

    return run


def texts(folder):
    """Yield all texts of the files in a folder, as they are and as they are read."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        yield path, data
        for raw in re.findall(rb'"raw": "([^"]*)"', data):
            yield path, base64.b64decode(raw)
        if path.suffix == ".parquet":
            for row in pq.read_table(path).to_pylist():
                yield path, json.dumps(row).encode()


def naming(folder, node=GONE):
    """Return the names of the files that name a node."""
    pattern = re.compile(node.encode() + rb"(?!\d)")
    return sorted({path.name for path, text in texts(folder) if pattern.search(text)})


def tree(folder):
    """Return the files of a run by name, but for those that state when they were written."""
    own = {".lock", "run.log", "health.json"}
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name not in own}


@pytest.mark.parametrize(
    "scores",
    ["out/scores.csv", *(pytest.param(f"out.{kind}", marks=SLOW) for kind in ("parquet", "jsonl"))],
)
def test_no_file_of_a_run_names_a_forgotten_node(tgflow, learn, tmp_path, scores):
    labels = ("--task", "edge", "--target", "label", "--label-delay", "30m", "--alert-budget", 9)
    learn("--scores", scores, "--time-unit", "s", *labels)
    shutil.move(tmp_path / "events.csv", tmp_path.parent / "events.csv")
    before = naming(tmp_path)
    assert {"000000.jsonl", "0000000000.log", "ids_bytes.safetensors"} <= {*before}
    assert {"stream.json", "report.html"} <= {*before}
    others = naming(tmp_path, OTHER)
    ran = tgflow("forget", "out", "--node", GONE, "--node", "never-there")
    assert ran.code == 0, ran.err
    assert "forgot 1 nodes of 2 ids, with " in ran.out
    assert "the memory of other nodes" in ran.out
    assert naming(tmp_path) == []
    assert {*others} - {"report.html"} == {*naming(tmp_path, OTHER)} - {"report.html"}
    assert len(list_checkpoints(tmp_path / "out/checkpoints")) == 1


def test_forgotten_events_are_those_of_an_erased_node_with_itself(tgflow, learn, tmp_path):
    learn()
    before, replica = tg.open_run(tmp_path / "out"), LogReplica(tmp_path / "out")
    events = before.graph.log.read(0, before.graph.num_events)
    (gone,) = before.ids.find([GONE]).tolist()
    is_gone = (events.src == gone) | (events.dst == gone)
    assert tgflow("forget", "out", "--node", GONE).code == 0
    while replica.predictor.ids.find([GONE]).tolist() != [-1]:  # it has loaded the new checkpoint
        replica.advance()
        time.sleep(0.01)
    after = tg.open_run(tmp_path / "out")
    found = after.graph.log.read(0, after.graph.num_events)
    for name in ("src", "dst", "t", "label"):
        old, new = getattr(events, name), getattr(found, name)
        if old is not None:
            assert torch.equal(old[~is_gone], new[~is_gone])
    assert torch.equal(events.t, found.t)
    assert is_gone.sum() > 50
    assert {*found.src[is_gone].tolist(), *found.dst[is_gone].tolist()} == {gone}
    assert not after.graph.edge_x.read(0, len(events))[is_gone].any()
    assert after.ids.find([GONE]).tolist() == [-1]
    assert after.ids.decode(torch.tensor([gone])) == [ERASED]
    assert ERASED not in after.top_k(OTHER, k=99).dst
    best = after.top_k(GONE, k=99)
    assert {*best.ranked_by} == {"popularity"}
    assert best.dst == replica.predictor.top_k(GONE, k=99).dst
    received = torch.bincount(found.dst[~is_gone])
    num = received[after.ids.find(best.dst)]
    assert torch.equal(num, received[received > 0].sort(descending=True).values)
    state = after.model.state.state_dict()
    assert not state["rows"][gone].any()
    assert not state["clock"][gone].any()
    # neighborhoods of the others are those of a graph without the events
    kept = tg.TemporalGraph()
    kept.append(tg.EventBatch(events.src[~is_gone], events.dst[~is_gone], events.t[~is_gone]))
    others = torch.tensor([n for n in range(len(before.ids)) if n != gone])
    t = torch.full_like(others, int(events.t[-1]) + 1)
    ids = [
        tg.graph.sampling.sample_neighbors(graph, tg.Sampler.recent(), others, t, 20).nodes
        for graph in (after.graph, kept)
    ]
    assert torch.equal(*ids)


def test_memory_rows_of_a_horizon_lose_the_forgotten_node(tgflow, learn, tmp_path):
    past = "".join(f"past-{i},shop-{i},{START},0.5,0,past/{i}\n" for i in range(40))
    header, rest = (tmp_path / "events.csv").read_text().split("\n", 1)
    (tmp_path / "events.csv").write_text(f"{header}\n{past}{rest}")
    learn("-m", "tgn", "--horizon-events", 64)
    before = tg.open_run(tmp_path / "out")
    old, (gone,) = before.model.state.state_dict(), before.ids.find([GONE]).tolist()
    assert 10 < len(old["nodes"]) < 30 < gone
    assert tgflow("forget", "out", "--node", GONE).code == 0
    memory = tg.open_run(tmp_path / "out").model.state
    new, kept = memory.state_dict(), old["nodes"] != gone
    assert kept.sum() == len(kept) - 1
    assert torch.equal(new["nodes"], old["nodes"][kept])
    assert torch.equal(new["clock"], old["clock"][kept])
    assert torch.equal(new["rows"][:, : memory.dim], old["rows"][kept][:, : memory.dim])
    assert not memory.read(torch.tensor([gone]), torch.tensor([10**6])).state.any()
    write_events(tmp_path / "more.csv", 60, 300)
    assert tgflow("run", "--resume", "-o", "out", "--append", "more.csv").code == 0


def kill(_):
    raise Killed


@SLOW
def test_killed_run_forgets_what_it_had_read_and_resumes_alike(
    tgflow, learn, tmp_path, monkeypatch
):
    """The log has events behind the newest checkpoint, which a resume repeats."""
    act_at(monkeypatch, 250, kill)
    with pytest.raises(Killed):
        learn("--checkpoint-batches", 2, "--scores", "out/scores.csv")
    assert tgflow("forget", "out", "--node", GONE).code == 0
    assert naming(tmp_path / "out") == []
    shutil.copytree(tmp_path / "out", tmp_path / "once")
    ran = tgflow("run", "--resume", "-o", "out")
    assert ran.code == 0, ran.err
    assert naming(tmp_path / "out") == []
    act_at(monkeypatch, 250, kill)
    shutil.copytree(tmp_path / "once", tmp_path / "twice")
    (tmp_path / "out").rename(tmp_path / "undisturbed")
    (tmp_path / "twice").rename(tmp_path / "out")
    with pytest.raises(Killed):
        tgflow("run", "--resume", "-o", "out")
    assert tgflow("run", "--resume", "-o", "out").code == 0
    same_run(tmp_path / "out", tmp_path / "undisturbed")


def test_running_run_forgets_and_goes_on(tgflow, learn, tmp_path, monkeypatch):
    told = []

    def ask(self):
        told.append(tgflow("forget", "out", "--node", GONE, "--no-wait"))
        while not self.flow.stopped:
            time.sleep(0.01)

    act_at(monkeypatch, 150, ask)
    learn()
    assert told[0].code == 0
    assert "is in use by process" in told[0].err
    assert "will forget the nodes" in told[0].err
    assert naming(tmp_path / "out") == []
    assert tg.open_run(tmp_path / "out").position == 294
    assert json.loads((tmp_path / "out/metrics.json").read_text())["interrupted"] is False


class _Failing(RealFs):
    """Raises at the operation of a number, as if the process were killed."""

    def __init__(self, left):
        self.left = left


def _counted(name):
    def operate(self, *args):
        if self.left == 0:
            raise Killed
        self.left -= 1
        return getattr(RealFs, name)(self, *args)

    return operate


for _name in ("create", "write", "sync", "rename", "unlink", "remove_directory", "make_directory"):
    setattr(_Failing, _name, _counted(_name))


@pytest.mark.parametrize("step", [None, pytest.param(1, marks=SLOW)])
def test_erasure_that_is_killed_at_any_write_is_finished_or_undone(learn, tmp_path, step):
    learn("--scores", "out/scores.csv")
    out = tmp_path / "out"
    forget.request(out, [GONE])
    shutil.copytree(out, tmp_path / "start")
    start = {k: v for k, v in tree(out).items() if not k.startswith("forget/")}
    forget.carry_out(out, print, counted := _Failing(10**6))
    done, states, size = tree(out), set(), 10**6 - counted.left
    for num in range(0, size, step) if step else (size // 2, size - 16, size - 6):
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "start", out)
        with pytest.raises(Killed):
            forget.carry_out(out, print, _Failing(num))
        is_begun = (out / "forget/journal.json").exists()
        states.add(is_begun)
        now = {k: v for k, v in tree(out).items() if not k.startswith("forget/")}
        is_whole = now == {k: v for k, v in done.items() if not k.startswith("forget/")}
        assert is_begun or now == start or is_whole, num
        forget.carry_out(out, print)
        assert tree(out) == done, num
    assert states == {False, True}


@SLOW
def test_erasure_survives_a_crash_of_the_machine(learn, tmp_path):
    """Of the states that the disk may be left in, each 50th; see `crash_states`."""
    learn("--scores", "out/scores.csv")
    out = tmp_path / "out"
    forget.request(out, [GONE])
    fs = RecordingFs(out)
    forget.carry_out(out, print, fs)
    done = tree(out)
    for number, state in enumerate(crash_states(fs)):
        if number % 50 == 0:
            shutil.rmtree(out)
            state.write_to(out)
            forget.carry_out(out, print)
            assert tree(out) == done, state.describe()
    assert number > 1_000


@SLOW
@pytest.mark.parametrize(
    "flags",
    [
        ("--edge-table", "disk", "--edge-path", "edges.rows"),
        ("-m", "tgn", "--slices", 2, "--replay-ratio", "0.5"),
        ("--horizon-events", 64, "--scores", "x-{day}.csv", "--time-unit", "s"),
        (
            *("--direction", "bipartite", "--node-features", "../nodes.csv"),
            *("--node-columns", "a", "--set", "graph.node_side=side"),
        ),
        (
            *("--label-stream", "../late.csv", "--label-column", "time=t", "--label", "label"),
            *("--task", "edge", "--target", "label", "--time-unit", "s"),
        ),
        ("--set", "checkpoint.log=false"),
    ],
    ids=lambda flags: flags[0].strip("-"),
)
def test_every_part_of_a_run_forgets_and_goes_on(tgflow, learn, tmp_path, flags):
    names = [f"zed-{n}" for n in range(60, 75)] + [GONE] + [f"shop-{n}" for n in range(8)]
    rows = [f"{name},{side},{len(name)}" for name in names for side in ("src", "dst")]
    rows = rows if "bipartite" in flags else rows[::2]
    (tmp_path.parent / "nodes.csv").write_text("\n".join(["id,side,a", *rows]) + "\n")
    lines = (tmp_path / "events.csv").read_text().splitlines()[1:]
    late = [line.split(",") for line in lines if "at " not in line][::3]
    rows = [f"{each[5]},{i % 2},{int(each[2]) + 500}" for i, each in enumerate(late)]
    (tmp_path.parent / "late.csv").write_text("\n".join(["id,label,t", *rows]) + "\n")
    learn(*flags)
    (tmp_path / "events.csv").rename(tmp_path.parent / "events.csv")
    more = write_events(tmp_path.parent / "more.csv", 60, 300)
    for num in (294, 352):  # the second time as a new node
        ran = tgflow("forget", "out", "--node", GONE)
        assert ran.code == 0, ran.err
        assert naming(tmp_path) == []
        ran = tgflow("run", "--resume", "-o", "out", "--append", more)
        assert ran.code == 0, ran.err
        run = tg.open_run(tmp_path / "out")
        assert run.position == 352
        assert not any(
            name.startswith(ERASED) for name in run.embeddings().read_all()["id"].to_pylist()
        )
        assert (run.ids.find([GONE], "dst").item() >= 0) is (num == 294)


@SLOW
@pytest.mark.parametrize("sharded", [(), SHARDED], ids=["replicated", "sharded"])
def test_run_of_ranks_forgets_and_goes_on_as_that_of_one_process(tgflow, tmp_path, sharded):
    def learn(*flags):
        ran = subprocess.run(
            [sys.executable, "-m", "tgflow", "run", "--nproc", "2", *map(str, flags)],
            check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr

    write_events(tmp_path / "events.csv")
    more = write_events(tmp_path.parent / "more.csv", 60, 300)
    flags = (*FLAGS, "-m", "tgn", "--slices", 2, "--replay-ratio", "0.5", *sharded)
    learn("-s", "events.csv", "-o", "out", *flags, "--edge-table", "disk")
    (tmp_path / "events.csv").rename(tmp_path.parent / "events.csv")
    assert naming(tmp_path) != []
    assert tgflow("forget", "out", "--node", GONE).code == 0
    assert naming(tmp_path) == []
    shutil.copytree(tmp_path / "out", tmp_path / "kept")
    learn("--resume", "-o", "out", "--append", more)
    (tmp_path / "out").rename(tmp_path / "two")
    (tmp_path / "kept").rename(tmp_path / "out")
    ran = tgflow("run", "--resume", "-o", "out", "--append", more)
    assert ran.code == 0, ran.err
    same_run(tmp_path / "out", tmp_path / "two")
    assert tg.open_run(tmp_path / "two").position == 352


def test_integers_and_a_file_of_nodes(tgflow, run, tmp_path):
    run("--direction", "bipartite")
    for flags, error in (
        (["out"], "forget needs the ids of nodes: --node ID, or --nodes FILE"),
        (["elsewhere", "--node", "x"], "elsewhere is no run: it has no config.toml"),
        (["out", "--node", "x"], "--node: 'x' is no id of out, whose ids are integers"),
    ):
        ran = tgflow("forget", *flags)
        assert ran.code == 2
        assert error in ran.err
    before = tg.open_run(tmp_path / "out")
    (tmp_path / "erase.txt").write_text("3\n5\n")
    ran = tgflow("forget", "out", "--nodes", "erase.txt", "--json")
    assert ran.json["nodes"] == 2
    assert ran.json["known"] == 4  # each is a source and a destination
    assert tgflow("forget", "out", "--node", "6").code == 0
    assert tgflow("info", "out", "--json").json["erased"]["nodes"] == 6
    assert re.search(r"forgotten nodes +.* 6, the last [\d.]+ m?s ago", tgflow("info", "out").out)
    after = tg.open_run(tmp_path / "out")
    for side in ("src", "dst"):
        assert after.ids.find([3, 5], side).tolist() == [-1, -1]
        assert after.ids.find([7], side).tolist() == before.ids.find([7], side).tolist()
    assert after.graph.num_events == before.graph.num_events
    (tmp_path / "out" / "forget" / "done.json").write_text('{"erased": "6"}')
    assert "done.json" in tgflow("info", "out").out
    damaged = tgflow("forget", "out", "--node", "9")
    assert damaged.code not in (0, 70)
    assert "done.json is damaged" in damaged.err
