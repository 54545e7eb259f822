"""Questions asked while a run learns, and the check of their answers by a repeated run."""

from __future__ import annotations

import copy
import random
import threading
from collections import defaultdict
from http.client import HTTPException
from typing import Any

import torch

from helpers.http_client import Client
from tgflow.runtime import runner
from tgflow.runtime.ingestion import SavedIngest
from tgflow.runtime.saved_run import make_engine


class Asker:
    """Threads that ask random questions until closed; `answers` has those that were answered.

    Args:
        url: Address of the server.
        nodes: Number of nodes, whose ids are 0, 1, ...
        threads: Number of clients.
        seed: Seed of the questions.
    """

    def __init__(self, url: str, nodes: int, threads: int = 2, seed: int = 0) -> None:
        self._url, self._nodes = url, nodes
        self.answers: list[tuple[str, Any, Any]] = []
        """Path, question and answer of each."""
        self.refusals: list[tuple[int, Any]] = []
        """Statuses and texts of answers that are none."""
        self.mark = 0
        """Number of answers at some time."""
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(seed + i,)) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop asking."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        rng, client = random.Random(seed), Client(self._url, timeout=30)
        while not self._ends.is_set():
            src, dst = ([rng.randrange(self._nodes) for _ in range(3)] for _ in range(2))
            path, question = rng.choice(
                (
                    ("/score", {"src": src, "dst": dst}),
                    ("/top-k", {"src": src[:1], "k": 3}),
                    ("/embedding", {"ids": src}),
                )
            )
            try:
                status, answer = client.post(path, question)
            except (OSError, HTTPException):  # the process has been killed
                client.close()
                self._ends.wait(0.01)
                continue
            if status == 200:
                self.answers.append((path, question, answer))
            else:
                self.refusals.append((status, answer))
        client.close()


class Repeated:
    """Checks answers in a repeated run, after each of its micro-batches.

    Args:
        answers: Paths, questions and answers.
    """

    def __init__(self, answers: list[tuple[str, Any, Any]]) -> None:
        self._waiting: dict[int, list[tuple[str, Any, Any]]] = defaultdict(list)
        for each in answers:
            self._waiting[each[2]["position"]].append(each)
        self._parameters: dict[int, Any] = {}
        self._record = runner.Runner._record
        self.num_equal = 0
        """Answers that were equal, bit for bit."""

    def recording(self) -> Any:
        """Return the method that takes the place of `Runner._record`."""

        def record(run: Any, step: Any) -> None:
            self._record(run, step)
            self._check(run, step)

        return record

    def _check(self, run: Any, step: Any) -> None:
        trainer = run.trainer
        self._parameters[step.stop] = copy.deepcopy(trainer.model.state_dict())
        asked: dict[int, list[Any]] = defaultdict(list)
        for path, question, answer in self._waiting.pop(step.stop, ()):
            asked[answer["parameters"]].append((path, question, answer))
        model = None
        ids = next(c._ingest.ids for c in run.components if isinstance(c, SavedIngest))
        for parameters, some in asked.items():
            model = model or copy.deepcopy(trainer.model)
            model.load_state_dict(self._parameters[parameters])
            engine = make_engine(trainer.config, model, trainer.graph)
            for path, question, answer in some:
                check(engine, ids, step.stop, path, question, answer)
                self.num_equal += 1

    @property
    def num_left(self) -> int:
        """Answers of positions at which no micro-batch has ended."""
        return sum(map(len, self._waiting.values()))


def check(engine: Any, ids: Any, stop: int, path: str, question: Any, answer: Any) -> None:
    """Assert that an answer over HTTP has the bits of an engine at its version."""
    log = engine.graph.log
    events = log.read(0, stop)
    num = int(torch.maximum(events.src.max(), events.dst.max())) + 1
    now = int(events.t[-1]) + 1

    def known(names: list[int], side: str = "src") -> torch.Tensor:
        found = ids.find(names, side)
        return found.masked_fill(found >= num, -1)

    if path == "/embedding":
        nodes = known(question["ids"])
        z = iter(engine.embed(nodes[nodes >= 0], now, as_of=stop).tolist())
        expected = [next(z) if node >= 0 else None for node in nodes.tolist()]
        assert [row["embedding"] for row in answer["embeddings"]] == expected
        return
    src = known(question["src"])
    if path == "/score":
        dst = known(question["dst"])
        keep = (src >= 0) & (dst >= 0)
        logits = iter(engine.score(src[keep], dst[keep], now, as_of=stop).tolist())
        expected = [next(logits) if each else None for each in keep.tolist()]
        assert [row["logit"] for row in answer["scores"]] == expected
        return
    if src[0] < 0:
        assert answer["scores"] == []
        return
    best = engine.rank(src, now, k=question["k"], as_of=stop)
    assert [row["dst"] for row in answer["scores"]] == ids.decode(best.nodes[0])
    assert [row["logit"] for row in answer["scores"]] == best.scores[0].tolist()
