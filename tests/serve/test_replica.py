"""Replicas: their answers have the bits of the trainer at the named version."""

from __future__ import annotations

import copy
import json
import os
import random
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import tgflow as tg
from helpers.effort import cases
from tgflow.graph.events import LateLabels
from tgflow.graph.tables import FeatureTable
from tgflow.nn import NodeMemory
from tgflow.run import serving
from tgflow.run.config import ConfigError
from tgflow.run.config.schema import ServeConfig
from tgflow.run.replica import FrameReplica, LogReplica
from tgflow.run.serving import FramePublisher, ReplicaJob, Replicas
from tgflow.serve.endpoint import Endpoint, Serving
from tgflow.serve.ring import Ring

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

BATCH, NUM_NODES = 20, 30
MODELS = cases(["tgn+pairs", "tgat", "tpnet", "recency"], ["tgn+pairs", "tpnet"])


def rows(size, names=False, seed=3, x_dim=0):
    """Return columns of a stream among a few nodes, more of which appear over time."""
    rng = random.Random(seed)
    src = [rng.randrange(min(NUM_NODES, 4 + i // 5)) for i in range(size)]
    dst = [rng.randrange(min(NUM_NODES, 4 + i // 5)) for i in range(size)]
    name = (lambda v: f"n{v}") if names else int
    columns = [[name(v) for v in src], [name(v) for v in dst], [10 * i for i in range(size)]]
    if x_dim:
        columns.append([[rng.random() * 10**k for k in range(x_dim)] for _ in range(size)])
    return tuple(columns)


class Published:
    """A trainer that publishes, and what its model was after each micro-batch."""

    def __init__(
        self, path: Path, name: str, every: int = 1, ring: str = "8MiB", node_x=None, **stream
    ) -> None:
        self.stream = tg.open_stream(rows(**({"size": 300} | stream)), time_unit="s")
        model = made(name, self.stream)
        graph = tg.TemporalGraph(edge_x_dim=self.stream.x_dim, node_x=node_x)
        self.trainer = tg.ContinualTrainer(
            model, graph, tg.ContinualConfig(batch_size=BATCH, seed=1, replay_horizon=100)
        )
        self.path = path
        self.trainer.ids = self.stream.ids
        tg.save_run(self.trainer, path)
        self.said: list[str] = []
        config = ServeConfig(parameters_every=f"{every}s", ring=ring)
        clock = lambda: self.trainer.position / BATCH  # noqa: E731
        self.publisher = FramePublisher(
            self.trainer, self.stream.ids, dict, config, self.said.append, clock
        )
        self.states = {0: copy.deepcopy(model.state_dict())}

    def steps(self):
        for step in self.trainer.steps(self.stream):
            self.states[step.stop] = copy.deepcopy(self.trainer.model.state_dict())
            self.publisher.on_step(step)
            yield step.stop

    def engine(self, parameters: int) -> tg.Inference:
        """Return an engine of the trainer's state, with the parameters of a position."""
        model = copy.deepcopy(self.trainer.model)
        model.load_state_dict(self.states[parameters])
        return tg.Inference(model, self.trainer.graph, seed=1)


def made(name, stream):
    """Return a small model whose settings are all in its config, as `trainer.save` requires."""
    entry = tg.models.MODELS[name]
    known = {"memory_dim": 8, "time_dim": 8, "embedding_dim": 8, "neighbors": 4, "walk_dim": 16}
    fields = entry.config.__dataclass_fields__
    settings = {k: v for k, v in known.items() if k in fields}
    if "edge_x_dim" in fields:
        settings["edge_x_dim"] = stream.x_dim
    torch.manual_seed(0)
    return entry.model(entry.config(**settings | entry.settings))


def same_answers(replica, published, seed):
    """Assert that some scores, rankings and embeddings are those of the trainer, bit for bit."""
    run, generator = replica.predictor, torch.Generator().manual_seed(seed)
    position = published.trainer.position
    assert run.position == position
    reference = published.engine(replica.parameters)
    num = run.graph.num_nodes
    src, dst = torch.randint(0, num, (2, 12), generator=generator)
    now = torch.full((12,), int(run.graph.log.t_last) + 1)
    expected = reference.score(src, dst, now, as_of=position)
    assert torch.equal(run.logits(src, dst, now), expected)
    best, logits = reference.rank(src[:1], now[:1], k=3, as_of=position)
    found = run.engine.rank(src[:1], now[:1], k=3)
    assert torch.equal(found.nodes, best)
    assert torch.equal(found.scores, logits)
    if type(reference.model).embed is not tg.TemporalModel.embed:
        z = reference.embed(src, now, as_of=position)
        assert torch.equal(run.engine.embed(src, now), z)
    assert run.ids.decode(src) == published.stream.ids.decode(src)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("every", cases([1, 4], [4]))
def test_answers_equal_the_trainer_bit_for_bit_at_each_version(tmp_path, name, every):
    published = Published(tmp_path / "run", name, every, names=True)
    replica = FrameReplica(tmp_path / "run", published.publisher.ring, published.said.append)
    for stop in published.steps():
        replica.advance()
        assert replica.parameters == 20 + (stop - 20) // BATCH // every * every * BATCH
        same_answers(replica, published, stop)
    assert replica.num_frames == 15
    assert replica.num_restarts == 0
    published.publisher.report()  # at the end of the stream
    replica.advance()
    assert replica.parameters == 300
    same_answers(replica, published, 300)
    assert replica.health().behind == 0
    memory, own = replica.predictor.model.state, published.trainer.model.state
    if isinstance(own, NodeMemory):
        assert all(torch.equal(x, own.state_dict()[k]) for k, x in memory.state_dict().items())


def test_statistics_of_node_features_follow_the_run_until_they_are_frozen(tmp_path):
    """They scale the features of nodes that no event has."""
    published = Published(tmp_path / "run", "recency", node_x=FeatureTable(1))
    graph, stream = published.trainer.graph, published.stream
    graph.node_scale = tg.graph.FeatureScale("standard", freeze_at=20)
    tg.save_run(published.trainer, tmp_path / "run")
    ids = list(range(NUM_NODES))
    ages = tg.NodeFeatures({"id": ids, "age": [float(i * i) for i in ids]}, id="id")
    published.stream = ages.along(stream, graph, ids=stream.ids)
    replica = FrameReplica(tmp_path / "run", published.publisher.ring, published.said.append)
    scale = replica._node_scale  # which scaled the rows that the predictor asks for
    seen = set()
    for _ in published.steps():
        replica.advance()
        now = tg.graph.FeatureScale("standard", freeze_at=20)  # that of the graph reads ahead
        now.load(graph.node_scale.state_at(graph.num_node_rows(replica.predictor.position)))
        expected = now.scaled(torch.tensor([[49.0]]))[0]
        seen.add(float(expected))
        assert torch.equal(scale.scaled(torch.tensor([[49.0]]))[0], expected)
    assert len(seen) > 3


def test_replica_has_the_late_labels_of_each_version(tmp_path):
    published = Published(tmp_path / "run", "tgn", 1)
    replica = FrameReplica(tmp_path / "run", published.publisher.ring, published.said.append)
    log, seen = published.trainer.graph.log, set()
    for stop in published.steps():
        log.add_labels(LateLabels([stop - 5, stop - 3], [1, stop % 3], [stop, stop]))
        if stop % 40:  # several frames at once
            replica.advance()
            num, late = log.late.num_upto(stop), replica.predictor.graph.log.late
            assert len(late) == num
            for name, column in late.read(0, num).items():
                assert torch.equal(column, log.late.read(0, num)[name])
            seen.add(num)
    assert len(seen) > 5


def test_scaled_features_and_several_frames_at_once(tmp_path):
    published = Published(tmp_path / "run", "tgn+pairs", 2, x_dim=2)
    published.trainer.graph.feature_scale = tg.graph.FeatureScale("auto", freeze_at=150)
    tg.save_run(published.trainer, tmp_path / "scaled")
    replica = FrameReplica(tmp_path / "scaled", published.publisher.ring, published.said.append)
    for number, stop in enumerate(published.steps()):
        if number % 3 == 2:
            assert replica.health().behind > 0
            replica.advance()
            same_answers(replica, published, stop)
    own, scale = replica.predictor.graph.feature_scale, published.trainer.graph.feature_scale
    probe = torch.tensor([[0.5, 3.0]])
    assert torch.equal(own.scaled(probe)[0], scale.scaled(probe)[0])


def test_replica_whose_frames_were_overwritten_starts_from_a_checkpoint(tmp_path):
    published = Published(tmp_path / "run", "tgn+pairs", ring="64KiB")
    replica = FrameReplica(tmp_path / "run", published.publisher.ring, published.said.append)
    stops = published.steps()
    next(stops)
    replica.advance()
    for _ in range(9):
        next(stops)
    assert not published.publisher.is_asked()
    replica.advance()
    while not published.publisher.is_asked():
        pass
    before = replica.predictor.position
    assert before == BATCH, "it answers as of then until there is a checkpoint"
    stop = next(stops)
    tg.save_run(published.trainer, tmp_path / "run")
    while replica.predictor.position < stop:
        replica.advance()
    same_answers(replica, published, stop)
    assert replica.num_restarts == 1
    for stop in stops:
        replica.advance()
        same_answers(replica, published, stop)


def test_answers_do_not_go_back_after_a_lost_frame_and_its_age_counts(tmp_path):
    """The ring still has all frames since an older checkpoint but the lost one."""
    published = Published(tmp_path / "run", "tgn+pairs")
    ring, stops = published.publisher.ring, published.steps()
    replica = FrameReplica(tmp_path / "run", ring, published.said.append)
    for stop in stops:
        replica.advance()
        if stop == 100:
            tg.save_run(published.trainer, tmp_path / "run")
        if stop == 160:
            break
    ring.usable = 0  # there is no memory for the next frame
    next(stops)
    assert published.said.pop().startswith("1 frames of --set serve.ring were lost: a frame of")
    lost_at = time.time()
    for _ in range(2):
        next(stops)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        replica.advance()
        assert replica.predictor.position == 160
    health = replica.health()
    assert health.behind == 60
    assert time.time() - lost_at <= health.age < 10
    assert replica.num_restarts == 1
    assert published.publisher.is_asked()
    tg.save_run(published.trainer, tmp_path / "run")
    for stop in stops:
        while replica.predictor.position < stop:
            replica.advance()
        same_answers(replica, published, stop)
    replica.advance()
    assert (replica.num_restarts, replica.health().age) == (1, 0.0)
    [line] = published.said
    assert line.startswith("a replica answers as of event 160 until a checkpoint is loaded: ")


def test_replica_behind_while_it_applies_frames_has_their_age(tmp_path, monkeypatch):
    monkeypatch.setattr("tgflow.run.replica.MOST_FRAMES", 1)
    published = Published(tmp_path / "run", "tgn+pairs")
    replica = FrameReplica(tmp_path / "run", published.publisher.ring, published.said.append)
    stops = published.steps()
    next(stops)
    published_at = time.time()
    time.sleep(0.3)
    next(stops)
    replica.advance()
    health = replica.health()
    assert health.behind == BATCH
    assert health.age >= 0.3, "not the time since a frame was applied"
    assert health.age <= time.time() - published_at + 5
    replica.advance()
    assert replica.health().age == 0.0


def test_restarted_replica_answers_once_it_has_what_the_ring_has(tmp_path):
    published = Published(tmp_path / "run", "tgn+pairs")
    stop = [*published.steps()][-1]
    replica = FrameReplica(tmp_path / "run", published.publisher.ring, published.said.append)
    same_answers(replica, published, stop)


def test_ring_too_small_for_the_parameters_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--set serve.ring=4KiB: the ring can have 4,096 bytes"):
        Published(tmp_path / "run", "tgn+pairs", ring="4KiB")


def test_replica_without_a_ring_takes_over_newer_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr("tgflow.run.replica._LOOK_SECONDS", 0.0)
    published = Published(tmp_path / "run", "tgn+pairs")
    replica = LogReplica(tmp_path / "run")
    for stop in published.steps():
        if stop % 100:
            continue
        tg.save_run(published.trainer, tmp_path / "run")
        while replica.predictor.position < stop:
            replica.advance()
        assert replica.parameters == stop
        same_answers(replica, published, stop)


def test_past_questions_are_answered_as_of_then_or_refused(tmp_path):
    published = Published(tmp_path / "run", "tgn+pairs")
    replica = FrameReplica(tmp_path / "run", published.publisher.ring, published.said.append)
    kept = {}
    for stop in published.steps():
        replica.advance()
        run = replica.predictor
        now = run.graph.log.t_last + 1
        kept[now] = published.engine(stop), stop
    run, last = replica.predictor, published.trainer.model.state_dict()
    for now, (engine, stop) in kept.items():
        if stop < 180:
            with pytest.raises(ValueError, match="the model's memory reaches back 120 events"):
                run.score(1, 2, at=now)
            continue
        engine.model.load_state_dict(last)
        expected = engine.score(torch.tensor([0]), torch.tensor([1]), now, as_of=stop)
        assert torch.equal(run.logits(*torch.tensor([[0], [1], [now]])), expected)


def test_trainer_does_not_wait_for_a_reader(tmp_path):
    published = Published(tmp_path / "run", "tgn+pairs", ring="64KiB")
    FrameReplica(tmp_path / "run", published.publisher.ring, print)  # and never reads on
    assert [*published.steps()][-1] == 300
    report = published.publisher.report()["serving"]
    assert report["frames"] == 15
    assert report["lost"] == 0


def test_ring_survives_its_writer(tmp_path):
    ring = Ring.create(1 << 12)
    ring.write(0, 5, None, {})
    other = Ring(os.dup(ring.fd))
    ring.close()
    assert other.read(1).end == 5
    other.close()


@pytest.mark.slow
def test_replica_without_a_checkpoint_ends_with_its_parent(tmp_path):
    ring, listener = Ring.create(1 << 12), socket.create_server(("127.0.0.1", 0))
    job = ReplicaJob(
        path=str(tmp_path),
        listener=listener.fileno(),
        ring=ring.fd,
        max_pairs=100,
        serving=Serving("tgn", "run", None, Endpoint("127.0.0.1", 0), [], 1 << 20, 8, 5.0, None),
    )
    with (
        listener,
        subprocess.Popen(
            [sys.executable, "-m", "tgflow.run.replica"],
            stdin=subprocess.PIPE,
            pass_fds=(ring.fd, listener.fileno()),
        ) as process,
    ):
        try:
            process.communicate(json.dumps(asdict(job)).encode() + b"\n", timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0
    ring.close()


@pytest.mark.slow
def test_metrics_of_killed_runs_are_removed_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = (
        "import os, signal\nfrom tgflow.run.serving import _metrics_folder\n"
        "print(_metrics_folder()[0], flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    variables = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    killed = Path(found.stdout.strip())
    assert killed.is_dir()
    (killed / "counter_1.db").touch()
    held, lock = serving._metrics_folder()
    assert killed.is_dir(), "it may be about to lock it"
    monkeypatch.setattr(serving, "_NEW_SECONDS", -1.0)
    where, serve = (Endpoint("127.0.0.1", 0), None), ServeConfig(replicas=1)
    monkeypatch.setattr(Replicas, "_keep", lambda self, index: None)
    with Replicas(tmp_path, serve, "tgn", where, None, print):
        assert not killed.exists()
        assert Path(held).is_dir(), "its process still runs"
        assert len([*tmp_path.iterdir()]) == 2
    assert [*tmp_path.iterdir()] == [Path(held)]
    os.close(lock)


def test_replica_that_ends_before_it_reads_its_job_is_started_again(tmp_path, monkeypatch):
    """What was not read of its pipe must not end the thread that keeps it."""
    started = []

    def start(self):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; sys.stdin.close()"],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        process.wait()
        started.append(process)
        return process, self._job

    monkeypatch.setattr(Replicas, "_start", start)
    monkeypatch.setattr(serving, "_RESTART_SECONDS", 0.01)
    where = Endpoint("127.0.0.1", 0), None
    with Replicas(tmp_path, ServeConfig(), "tgn", where, None, lambda text: None) as replicas:
        while len(started) < 3 and replicas.is_alive:
            time.sleep(0.01)
        assert replicas.is_alive
