"""What a gateway asks, answered in the process that has the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tgflow.serve.answers import Answers
from tgflow.serve.link import Call, Cancel, Link, PathOfRun, Ready, Reply, Warned
from tgflow.serve.predictor import Predictor
from tgflow.serve.questions import Question
from tgflow.serve.refused import FAULT, Refused


class Backend:
    """Has questions answered, and says itself how the run is: that waits for no trainer."""

    def __init__(
        self,
        predictor: Predictor,
        answers: Answers,
        registry: Any,
        state: Callable[[], str],
        warn: Callable[[str], None],
    ) -> None:
        self._predictor, self._answers = predictor, answers
        self._registry, self._state, self._warn = registry, state, warn
        # what measures may wait for a disk, and no question is to wait for it
        self._measuring = ThreadPoolExecutor(1, "metrics")

    def close(self) -> None:
        """Measure no more."""
        self._measuring.shutdown(wait=False, cancel_futures=True)

    def attend(self, link: Link) -> bool:
        """Answer a gateway until it ends, and return whether it ever took requests."""
        was_ready = False
        asked: dict[int, Future[bytes]] = {}
        while True:
            try:
                message = link.receive()
            except EOFError:
                break
            if isinstance(message, Ready):
                was_ready = True
            elif isinstance(message, Warned):
                self._warn(message.text)
            elif isinstance(message, Cancel):
                if found := asked.get(message.number):
                    found.cancel()
            else:
                self._answer(link, asked, message)
        for future in [*asked.values()]:
            future.cancel()
        return was_ready

    def _answer(self, link: Link, asked: dict[int, Future[bytes]], message: Call) -> None:
        """Send an answer, at once or when there is one; until then it is among `asked`."""
        number, what = message
        path = what.path if isinstance(what, Question) else what

        def send(future: Future[bytes]) -> None:
            del asked[number]
            with suppress(CancelledError):
                error = future.exception()
                link.send(Reply(number, future.result() if error is None else _refusal(error)))
                if error is not None and not isinstance(error, Refused):
                    self._warn(f"{path} failed: {type(error).__name__}: {error}")

        future = self._answers.ask(what) if isinstance(what, Question) else self._told(what)
        asked[number] = future
        future.add_done_callback(send)

    def _told(self, path: PathOfRun) -> Future[bytes]:
        """Return how the run is."""
        if path == "/metrics":
            return self._measuring.submit(self._metrics)
        future = Future[bytes]()
        try:
            health = {"state": self._state(), "position": self._predictor.position}
            future.set_result(json.dumps(health).encode())
        except Exception as error:
            future.set_exception(error)
        return future

    def _metrics(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


def _refusal(error: BaseException) -> Refused:
    """Return why there is no answer; what is a fault of ours is for the log."""
    return error if isinstance(error, Refused) else Refused(500, FAULT)
