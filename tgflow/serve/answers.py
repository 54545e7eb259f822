"""Queue of questions, answered together by one thread, which also advances the state."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tgflow.serve.predictor import Predictor
from tgflow.serve.questions import Question, Refused, Unscored

_POLL_SECONDS = 0.003
"""Seconds between looks for new frames while no question waits."""


class State(Protocol):
    """What questions are asked about; one thread uses it."""

    @property
    def predictor(self) -> Predictor:
        """The copy of the run."""

    @property
    def parameters(self) -> int:
        """Log position up to which the parameters were learned."""

    def advance(self) -> None:
        """Take over what the run has learned meanwhile."""


@dataclass(slots=True, eq=False)
class _Waiting:
    question: Question
    size: int
    """Number of pairs and nodes in the question, approximately."""
    answer: Future[bytes] = field(default_factory=Future)


class Answers:
    """Answers questions in a background thread: all queued ones at once, as of one version.

    The thread alone reads and advances the state. Questions that arrive while it computes are
    answered in its next turn, so turns grow with the load. An invalid question does not affect
    others. A question, and approximately a turn, has at most `max_pairs` pairs and nodes.
    """

    def __init__(self, state: State, max_pairs: int, warn: Callable[[str], None]) -> None:
        self._state, self._max_pairs, self._warn = state, max_pairs, warn
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.num_answered = self.num_turns = 0
        """Questions answered, and in how many turns."""
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> Future[bytes]:
        """Return a future of the answer as JSON; it raises `Refused`, or a fault.

        A question canceled before it is answered costs nothing, and neither does one that exceeds
        `max_pairs`.
        """
        waiting = _Waiting(question, question.size(self._state.predictor.graph.num_nodes))
        size, most, counts = waiting.size, self._max_pairs, question.counts
        with self._changed:
            if self._is_closed:
                stopping = Refused(503, "the server is stopping; ask again later")
                waiting.answer.set_exception(stopping)
            elif counts is not None and size > most:
                text = f"{size:,} {counts} are more than {most:,}: ask about fewer at a time"
                waiting.answer.set_exception(Refused(422, text))
            else:
                self._waiting.append(waiting)
                self._changed.notify()
        return waiting.answer

    def close(self) -> None:
        """Answer the queued questions, then reject further ones."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed, _POLL_SECONDS)
                if self._is_closed and not self._waiting:
                    return
            if taken := self._take():  # first, so that answers do not wait for the run
                self._answer(taken)
            try:
                self._state.advance()
            except Exception as error:
                self._warn(f"the run cannot be followed: {type(error).__name__}: {error}")

    def _take(self) -> list[_Waiting]:
        """Remove the questions of a turn from the queue: at least one, if any is still wanted."""
        taken: list[_Waiting] = []
        room = self._max_pairs
        with self._changed:
            while self._waiting and (not taken or self._waiting[0].size <= room):
                first = self._waiting.popleft()
                if first.answer.set_running_or_notify_cancel():
                    taken.append(first)
                    room -= first.size
        return taken

    def _answer(self, taken: Sequence[_Waiting]) -> None:
        """Answer the questions of a turn: one call scores all pairs, or two with relations."""
        predictor, self.num_turns = self._state.predictor, self.num_turns + 1
        version = {"position": predictor.position, "parameters": self._state.parameters}
        waiting: tuple[list[tuple[_Waiting, Unscored]], ...] = [], []
        for each in taken:
            found = _tried(partial(each.question.answer, predictor, self._max_pairs))
            if isinstance(found, Unscored):
                waiting[found.pairs.relation is not None].append((each, found))
            else:
                self._deliver(each, version, found)
        for some in filter(None, waiting):
            found = _tried(partial(predictor.score_pairs, [asked.pairs for _, asked in some]))
            for i, (each, asked) in enumerate(some):
                failed = isinstance(found, Exception)
                self._deliver(each, version, found if failed else asked.answer(found[i]))

    def _deliver(self, to: _Waiting, version: dict[str, Any], answer: Any) -> None:
        self.num_answered += 1
        if not isinstance(answer, Exception):
            try:
                to.answer.set_result(json.dumps(version | answer, allow_nan=False).encode())
                return
            except ValueError as error:  # a logit that is not finite
                answer = error
        to.answer.set_exception(answer)


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (ValueError, TypeError) as error:
        return Refused(422, str(error))
    except Exception as error:
        return error
