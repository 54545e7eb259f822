"""Small models that are served, clients, and the check of answers by a repeated run."""

import copy
import http.client
import json
import random
import socket
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import tgflow as tg
from helpers.made_models import X_DIM, made_events, made_model
from tgflow.base.units import parse_seconds
from tgflow.graph import FeatureScale
from tgflow.graph.ids import NodeIds
from tgflow.graph.tables import FeatureTable
from tgflow.run import runner
from tgflow.run.config import StreamConfig
from tgflow.run.config.schema import ServeConfig
from tgflow.run.ingestion import SavedIngest
from tgflow.run.saved import make_engine
from tgflow.serve.endpoint import Endpoint, Serving
from tgflow.serve.predictor import Predictor
from tgflow.serve.questions import QUESTIONS, Unscored
from tgflow.train.calibration import Calibration


class Client:
    """A client with one persistent connection."""

    def __init__(self, url, token=None, timeout=60):
        at = urlsplit(url)
        self.host, self.port = at.hostname, at.port
        self._connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def post(self, path, question):
        body = question if isinstance(question, bytes) else json.dumps(question).encode()
        return self.request("POST", path, body, {"Content-Type": "application/json"})

    def get(self, path):
        return self.request("GET", path)

    def request(self, method, path, body=None, headers=None):
        """Return status and response, parsed JSON or text."""
        self._connection.request(method, path, body, self._headers | (headers or {}))
        answer = self._connection.getresponse()
        self.headers = answer.headers
        text = answer.read().decode()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def raw(self, data=b""):
        """Return a connection after sending `data`."""
        connection = socket.create_connection((self.host, self.port), timeout=60)
        connection.sendall(data)
        return connection

    def close(self):
        self._connection.close()


def read_all(connection):
    """Return the bytes received until the server closes the connection."""
    parts = []
    with connection:
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


NUM_NODES = 12


def made_ids():
    """Return ids of the nodes of `made_events`: n0, n1, ..."""
    ids = NodeIds()
    names = [f"n{i}" for i in range(NUM_NODES)]
    ids.encode(names[::2], names[1::2])
    return ids


def empty_graph():
    """Return a graph for `made_events`, times in seconds."""
    return tg.TemporalGraph(edge_x=FeatureTable(X_DIM), time_unit="s")


def made_predictor(name="tgn", size=60):
    """Return a predictor of a model that has seen some events."""
    graph = empty_graph()
    graph.append(made_events(size))
    model = made_model(name)
    engine = tg.Inference(model, graph)
    return Predictor("made", StreamConfig(), made_ids(), graph, engine, Calibration())


def live_predictor(name, batch_size=20, **options):
    """Return a predictor of a new trainer, and the trainer."""
    model, graph = made_model(name), empty_graph()
    config = tg.ContinualConfig(batch_size=batch_size, seed=1)
    trainer = tg.ContinualTrainer(model, graph, config, **options)
    engine = tg.Inference(model, graph)
    predictor = Predictor("made", StreamConfig(), made_ids(), graph, engine, Calibration())
    predictor.follow(trainer, engine)
    return predictor, trainer


class Held:
    """A state that does not advance, and which `holding` keeps from answering."""

    def __init__(self, predictor):
        self.predictor, self.parameters = predictor, predictor.position
        self._lock, self._num_waiting = threading.Lock(), 0

    @contextmanager
    def holding(self):
        """Context manager in which no turn of questions begins."""
        with self._lock:
            while not self._num_waiting:
                time.sleep(0.001)
            yield

    def advance(self):
        """Wait until the state is not held."""
        self._num_waiting += 1
        with self._lock:
            self._num_waiting -= 1


LIMITS = ("max_body", "max_pairs", "max_waiting")


class Served:
    """A server of a state in a thread of this process."""

    def __init__(self, state, token, hosts=(), at="127.0.0.1", **limits):
        from prometheus_client import CollectorRegistry

        from tgflow.serve.answers import Answers
        from tgflow.serve.questions import Health
        from tgflow.serve.server import make_server

        self.state, self.faults = state, []
        self.behind = 0
        add_labels, label_token = (limits.pop(name, None) for name in ("add_labels", "label_token"))
        constants = {name: limits.pop(name) for name in LIMITS if name in limits}
        config = ServeConfig(**limits)
        for name, value in constants.items():
            object.__setattr__(config, name, value)
        listener = Endpoint("127.0.0.1", 0).listen()
        self.endpoint = Endpoint(at, listener.getsockname()[1])
        self.answers = Answers(state, config.max_pairs, self.faults.append)
        registry = CollectorRegistry()
        serving = Serving(
            "made",
            "run",
            token,
            self.endpoint,
            hosts,
            config.max_body,
            config.max_waiting,
            parse_seconds(config.timeout),
            config.max_lag,
            label_token,
        )

        def health():
            position = state.predictor.position
            return Health(
                position=position,
                parameters=state.parameters,
                state="following",
                behind=self.behind,
                age=0.0,
            )

        self._server = make_server(
            serving, self.answers, health, registry, registry, self.faults.append, add_labels
        )
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()

    def close(self):
        """Answer what was asked, and end."""
        self._server.should_exit = True
        self._thread.join()
        self.answers.close()


@contextmanager
def served(predictor, token=None, **limits):
    """Serve a predictor, which the attribute `state` can hold."""
    server = Served(Held(predictor), token, **limits)
    try:
        yield server
    finally:
        server.close()


class Asked(NamedTuple):
    """A question and its answer."""

    path: str
    question: dict[str, Any]
    answer: dict[str, Any]


class Asker:
    """Clients that ask about the ids up to `nodes`, now or at `times`, until closed."""

    def __init__(self, url, nodes, times=(), x_dim=0, threads=2, pause=0.0):
        self._url, self._nodes, self._times, self._x_dim = url, nodes, times, x_dim
        self._pause = pause
        self.answers = []
        self.refusals = []
        """Statuses and texts of answers that are none."""
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def close(self):
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed):
        rng, client = random.Random(seed), Client(self._url, timeout=30)
        while not self._ends.wait(self._pause):
            path, question = self._question(rng)
            try:
                status, answer = client.post(path, question)
            except (OSError, HTTPException):  # the process has been killed
                client.close()
                self._ends.wait(0.05)
                continue
            if status == 200:
                self.answers.append(Asked(path, question, answer))
            else:
                self.refusals.append((status, answer))
        client.close()

    def _question(self, rng):
        num = rng.choice((1, 3, 40))
        src, dst = ([rng.randrange(self._nodes) for _ in range(num)] for _ in range(2))
        path, question = rng.choice(
            (
                ("/score", {"src": src, "dst": dst}),
                ("/top-k", {"src": src[:2], "k": 3, "exclude_known": rng.random() < 0.5}),
                ("/top-k", {"src": src[:1], "candidates": rng.sample(range(self._nodes), 8)}),
                ("/embedding", {"ids": src}),
                ("/neighbors", {"ids": src[:3], "k": 5}),
            )
        )
        if path == "/score" and self._x_dim and rng.random() < 0.5:
            question["x"] = [[rng.random() for _ in range(self._x_dim)] for _ in src]
        if self._times and rng.random() < 0.3:
            question["at"] = rng.choice(self._times)
        return path, question


class Repeated:
    """Checks answers in a repeated run, after each of its micro-batches."""

    def __init__(self, answers):
        self._waiting = defaultdict(list)
        for each in answers:
            self._waiting[each.answer["position"]].append(each)
        self._parameters = {}
        self._record = runner.Runner._record
        self.num_equal = defaultdict(int)
        """Answers that were equal, bit for bit, by path."""
        self.positions = []
        """Positions of answers at which a micro-batch has ended."""

    def recording(self):
        """Return the method that takes the place of `Runner._record`."""

        def record(run, step):
            self._record(run, step)
            self._check(run, step)

        return record

    def _check(self, run, step):
        trainer = run.trainer
        self._parameters[step.stop] = copy.deepcopy(trainer.model.state_dict())
        asked = self._waiting.pop(step.stop, [])
        if not asked:
            return
        self.positions.append(step.stop)
        model, labels = copy.deepcopy(trainer.model), trainer.labels
        ids = next(c._ingest.ids for c in run.components if isinstance(c, SavedIngest))
        engine = make_engine(trainer.config, model, trainer.graph)
        shown = "made", StreamConfig(features=["amount"]), ids, trainer.graph, engine, Calibration()
        predictor = Predictor(*shown, features={"amount": 1}, labels=labels)
        predictor.follow(trainer, engine)
        if (scale := trainer.graph.feature_scale) is not None:  # it has read further
            trainer.graph.feature_scale = FeatureScale(scale.kind, scale.freeze_at)
            trainer.graph.feature_scale.load(scale.state_at(step.stop))
        asked.sort(key=lambda each: each.answer["parameters"])
        loaded = None
        for each in asked:
            if each.answer["parameters"] != loaded:
                loaded = each.answer["parameters"]
                model.load_state_dict(self._parameters[loaded])
            expected = answer_of(predictor, *each[:2])
            assert bits_of(each.answer) == bits_of(expected), (each, expected)
            self.num_equal[each.path] += 1
        trainer.graph.feature_scale = scale

    @property
    def left(self):
        """Positions of answers at which no micro-batch has ended."""
        return {*self._waiting}


def answer_of(predictor, path, question):
    """Return the answer of a predictor to a question over HTTP."""
    kind = next(kind for kind in QUESTIONS if kind.path == path)
    answer = kind.model_validate(question).answer(predictor, 10**6)
    if isinstance(answer, Unscored):
        answer = answer.answer(predictor.score_pairs([answer.pairs])[0])
    return json.loads(json.dumps(answer))


def bits_of(answer):
    """Return the fields of the rows of an answer that do not depend on a calibration."""
    [rows] = (rows for rows in answer.values() if isinstance(rows, list))
    return [[row.get(name) for name in BITS] for row in rows]


BITS = (
    "src",
    "dst",
    "ranked_by",
    "id",
    "neighbor",
    "position",
    "logit",
    "label_probability",
    "embedding",
)
