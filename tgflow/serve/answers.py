"""Queue of questions, answered together by one thread between a trainer's micro-batches."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from tgflow.choices import Side
from tgflow.ids import UnknownNode, UnknownRelation
from tgflow.inference.explain import MAX_EVENTS
from tgflow.serve.predictor import Predictor
from tgflow.serve.questions import (
    EmbeddingQuestion,
    ExplainQuestion,
    Question,
    Refused,
    ScoreQuestion,
    TopQuestion,
)

Answer: TypeAlias = dict[str, Any] | Exception
"""The JSON of an answer, or the error."""
_Nodes: TypeAlias = Tensor | Exception
"""The dense ids of a column, or the error."""
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Waiting:
    question: Question
    size: int
    """Number of pairs and nodes in the question, approximately."""
    answer: Future[bytes] = field(default_factory=Future)


class Answers:
    """Answers questions in a background thread: all queued ones at once, as of one position.

    The thread holds the model while it answers, see `Predictor.follow`. The queue is read only
    then, so turns grow with the load, and a trainer waits for at most one turn between two
    micro-batches. An invalid question does not affect others.

    Args:
        predictor: Predictor that answers.
        max_pairs: Most pairs and nodes of a question, and approximately of a turn.
    """

    def __init__(self, predictor: Predictor, max_pairs: int) -> None:
        self._predictor, self._max_pairs = predictor, max_pairs
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> Future[bytes]:
        """Return a future of the answer as JSON; it raises `Refused`, or a fault.

        A question canceled before it is answered costs nothing, and neither does one that exceeds
        `max_pairs`.
        """
        waiting = _Waiting(question, self._size(question))
        refused = self._refusal(waiting)
        with self._changed:
            if self._is_closed:
                refused = Refused(503, "the server is stopping; ask again later")
            if refused is not None:
                waiting.answer.set_exception(refused)
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

    def _size(self, question: Question) -> int:
        if isinstance(question, ScoreQuestion):
            return max(len(question.src), len(question.dst))
        if isinstance(question, EmbeddingQuestion):
            return len(question.ids)
        if isinstance(question, ExplainQuestion):
            return min(2 * MAX_EVENTS, self._max_pairs)
        assert isinstance(question, TopQuestion)
        candidates = question.candidates
        num = self._predictor.graph.num_nodes if candidates is None else len(candidates)
        return len(question.src) * num

    def _refusal(self, waiting: _Waiting) -> Refused | None:
        question, size = waiting.question, waiting.size
        if isinstance(question, TopQuestion) or size <= self._max_pairs:
            return None  # `top_k` checks rankings by their candidates
        what = "pairs" if isinstance(question, ScoreQuestion) else "nodes"
        text = f"{size:,} {what} are more than {self._max_pairs:,}: ask about fewer at a time"
        return Refused(422, text)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
            with self._predictor.holding():
                taken = self._take()
                position = self._predictor.position
                answers = self._answers([each.question for each in taken])
            for each, answer in zip(taken, answers, strict=True):
                _deliver(each.answer, position, answer)

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

    def _answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Return the answer to each question; one call scores all pairs, or two with relations."""
        out = [
            {} if isinstance(each, ScoreQuestion) else _tried(self._answer, each)
            for each in questions
        ]
        rows = [i for i, each in enumerate(questions) if isinstance(each, ScoreQuestion)]
        for i, each in zip(rows, self._scores([questions[i] for i in rows]), strict=True):
            out[i] = each
        return out

    def _answer(self, question: Question) -> dict[str, Any]:
        predictor = self._predictor
        if isinstance(question, EmbeddingQuestion):
            z = predictor.embed(question.ids, question.at, side=question.side).tolist()
            named = zip(question.ids, z, strict=True)
            return {"embeddings": [{"id": id, "embedding": row} for id, row in named]}
        if isinstance(question, ExplainQuestion):
            q = question
            return predictor.explain(q.src, q.dst, q.at, q.relation).to_dict()
        assert isinstance(question, TopQuestion)
        found = predictor.top_k(
            question.src,
            question.k,
            question.candidates,
            question.exclude_known,
            question.at,
            question.relation,
            max_pairs=self._max_pairs,
        )
        return {"scores": found.to_arrow().to_pylist()}

    def _scores(self, questions: Sequence[Any]) -> list[Answer]:
        predictor = self._predictor
        src = self._found([each.src for each in questions], "src")
        dst = self._found([each.dst for each in questions], "dst")

        def resolved(
            question: ScoreQuestion, src: _Nodes, dst: _Nodes
        ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
            if isinstance(src, Exception):
                raise src
            if isinstance(dst, Exception):
                raise dst
            return predictor.pairs_of(src, dst, question.at, question.relation)

        def scored(asked: Sequence[Sequence[Tensor | None]]) -> list[dict[str, Any]]:
            columns = [each for each in zip(*asked, strict=True) if each[0] is not None]
            found = predictor.score_pairs(*map(torch.cat, columns))
            rows: list[dict[str, Any]] = found.to_arrow().to_pylist()
            return rows

        out: list[Any] = [_tried(resolved, *each) for each in zip(questions, src, dst, strict=True)]
        found = [i for i, each in enumerate(out) if not isinstance(each, Exception)]
        plain = [i for i in found if out[i][3] is None]
        for places in (plain, [i for i in found if out[i][3] is not None]):
            if not places:
                continue
            asked = [out[i] for i in places]
            rows = _tried(scored, asked)
            bounds = pairwise(accumulate((len(each[0]) for each in asked), initial=0))
            for i, (start, stop) in zip(places, bounds, strict=True):
                out[i] = rows if isinstance(rows, Exception) else {"scores": rows[start:stop]}
        return out

    def _found(self, columns: Sequence[list[Any]], side: Side) -> list[_Nodes]:
        """Return the nodes of each column: looked up at once, unless one of them is invalid."""
        find = self._predictor.find
        try:
            return [*torch.split(find([*chain(*columns)], side), [*map(len, columns)])]
        except Exception:
            return [_tried(find, column, side) for column in columns]


def _tried(call: Callable[..., _T], *args: Any) -> _T | Exception:
    """Return a result, or the error."""
    try:
        return call(*args)
    except (UnknownNode, UnknownRelation) as error:
        return Refused(404, str(error))
    except (ValueError, TypeError) as error:
        return Refused(422, str(error))
    except Exception as error:
        return error


def _deliver(to: Future[bytes], position: int, answer: Answer) -> None:
    if not isinstance(answer, Exception):
        try:
            to.set_result(json.dumps({"position": position} | answer, allow_nan=False).encode())
            return
        except ValueError as error:  # a logit that is not finite
            answer = error
    to.set_exception(answer)
