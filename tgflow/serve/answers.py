"""Queue of questions, answered together by one thread, which also advances the state."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from math import isnan
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tgflow.graph.ids import UnknownNode, UnknownRelation
from tgflow.serve.explain import MAX_EVENTS
from tgflow.serve.predictor import Predictor
from tgflow.serve.questions import (
    EmbeddingQuestion,
    ExplainQuestion,
    NeighborQuestion,
    Question,
    Refused,
    ScoreQuestion,
    TopQuestion,
)
from tgflow.serve.scored_pairs import ScoredPairs

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


class AskedPairs(NamedTuple):
    """Pairs to score, int64 `[N]` each, and what the answer shows of them."""

    src: Tensor
    dst: Tensor
    t: Tensor
    relation: Tensor | None
    pick: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    """Returns the pairs to show by the logits of all, int64 `[K]`, and their ranks, if any."""
    finish: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Returns the answer by the rows of those pairs."""


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
    others.

    Args:
        state: The state.
        max_pairs: Most pairs and nodes of a question, and approximately of a turn.
        warn: Called with a message if the state cannot advance.
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
        if isinstance(question, NeighborQuestion):
            return len(question.ids) * question.k
        if isinstance(question, EmbeddingQuestion):
            return len(question.ids)
        if isinstance(question, ExplainQuestion):
            return min(2 * MAX_EVENTS, self._max_pairs)
        assert isinstance(question, TopQuestion)
        candidates = question.candidates
        num = self._state.predictor.graph.num_nodes if candidates is None else len(candidates)
        return len(question.src) * num

    def _refusal(self, waiting: _Waiting) -> Refused | None:
        question, size = waiting.question, waiting.size
        if isinstance(question, TopQuestion) or size <= self._max_pairs:
            return None  # rankings are checked by the candidates that there are
        what = "pairs" if isinstance(question, ScoreQuestion) else "nodes"
        text = f"{size:,} {what} are more than {self._max_pairs:,}: ask about fewer at a time"
        return Refused(422, text)

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
        scored: list[tuple[_Waiting, AskedPairs]] = []
        for each in taken:
            found = _tried(partial(asked, predictor, each.question, self._max_pairs))
            if isinstance(found, AskedPairs):
                scored.append((each, found))
            else:
                self._deliver(each, version, found)
        for some in ([x for x in scored if (x[1].relation is None) == plain] for plain in (1, 0)):
            if not some:
                continue
            found = _tried(partial(_answered, predictor, [pairs for _, pairs in some]))
            answers = [found] * len(some) if isinstance(found, Exception) else found
            for (each, _), answer in zip(some, answers, strict=True):
                self._deliver(each, version, answer)

    def _deliver(self, to: _Waiting, version: dict[str, Any], answer: Any) -> None:
        self.num_answered += 1
        if not isinstance(answer, Exception):
            try:
                to.answer.set_result(json.dumps(version | answer, allow_nan=False).encode())
                return
            except ValueError as error:  # a logit that is not finite
                answer = error
        to.answer.set_exception(answer)


def asked(predictor: Predictor, question: Question, max_pairs: int) -> dict[str, Any] | AskedPairs:
    """Return the answer to a question, or the pairs that it needs the scores of."""
    if isinstance(question, NeighborQuestion):
        return _neighbors(predictor, question)
    if isinstance(question, EmbeddingQuestion):
        nodes = predictor.find_known(question.ids, question.side)
        known, t = nodes >= 0, predictor.ticks(question.at, len(nodes))
        rows = iter(predictor.embed_nodes(nodes[known], t[known]).tolist())
        named = zip(question.ids, known.tolist(), strict=True)
        return {
            "embeddings": [{"id": id, "embedding": next(rows) if k else None} for id, k in named]
        }
    if isinstance(question, ExplainQuestion):
        q = question
        return predictor.explain(q.src, q.dst, q.at, q.relation).to_dict()
    if isinstance(question, TopQuestion):
        return _ranked(predictor, question, max_pairs)
    assert isinstance(question, ScoreQuestion)
    return _pairs(predictor, question)


def _pairs(predictor: Predictor, question: ScoreQuestion) -> dict[str, Any] | AskedPairs:
    src, dst = predictor.find_known(question.src, "src"), predictor.find_known(question.dst, "dst")
    pairs = predictor.pairs_of(src, dst, question.at, question.relation)
    known = ((src >= 0) & (dst >= 0)).nonzero().squeeze(1)
    src, dst, t = (x[known] for x in pairs[:3])
    relation = None if pairs[3] is None else pairs[3][known]

    def finish(found: list[dict[str, Any]]) -> dict[str, Any]:
        names = zip(question.src, question.dst, strict=True)
        unknown = dict.fromkeys(("logit", "probability", "anomaly"))
        rows = [{"src": u, "dst": v, **unknown} for u, v in names]
        for i, row in zip(known.tolist(), found, strict=True):
            rows[i] |= row
        return {"scores": rows}

    x = predictor.features_of(question.x, len(pairs[0]))
    if predictor.labels is None:
        every = torch.arange(len(src))
        return AskedPairs(src, dst, t, relation, lambda logits: (every, None), finish)
    x = None if x is None else x[known]
    return finish(_rows(predictor.score_events(src, dst, t, relation, x)))


def _ranked(
    predictor: Predictor, question: TopQuestion, max_pairs: int
) -> dict[str, Any] | AskedPairs:
    """Return the pairs of sources and candidates; ties keep the order of candidates."""
    src, k = predictor.find_known(question.src, "src"), question.k
    t = predictor.ticks(question.at, len(src))
    relation = predictor.find_relations(question.relation, len(src))
    if question.candidates is None:
        others = predictor.destinations()
    else:
        others = predictor.find_known(question.candidates, "dst")
        others = others[others >= 0]
    if len(src) * len(others) > max_pairs:
        raise ValueError(
            f"{len(src):,} sources with {len(others):,} candidates each are more than "
            f"{max_pairs:,} pairs: ask for fewer sources at a time, or name candidates"
        )
    lists = [
        others[:0]
        if node < 0
        else predictor.without_known(node, tick, others)
        if question.exclude_known
        else others
        for node, tick in zip(src.tolist(), t.tolist(), strict=True)
    ]
    sizes = [len(each) for each in lists]
    each = torch.tensor(sizes, dtype=torch.int64)
    left, right = src.repeat_interleave(each), torch.cat([others[:0], *lists])

    def pick(logits: Tensor) -> tuple[Tensor, Tensor]:
        best, first = [each[:0]], 0
        for size in sizes:
            own = logits[first : first + size]
            best.append(first + own.argsort(descending=True, stable=True)[:k])
            first += size
        return torch.cat(best), torch.cat([torch.arange(1, len(some) + 1) for some in best])

    t = t.repeat_interleave(each)
    related = None if relation is None else relation.repeat_interleave(each)
    return AskedPairs(left, right, t, related, pick, lambda rows: {"scores": rows})


def _neighbors(predictor: Predictor, question: NeighborQuestion) -> dict[str, Any]:
    nodes = predictor.find_known(question.ids, question.side)
    found = predictor.neighbors(nodes, predictor.ticks(question.at, len(nodes)), question.k)
    mask = found.mask
    asked = mask.nonzero()[:, 0].tolist()
    columns = zip(
        asked,
        predictor.ids.decode(found.nodes[mask]),
        found.t[mask].tolist(),
        found.eid[mask].tolist(),
        strict=True,
    )
    time = predictor.time_of
    return {
        "neighbors": [
            {"id": question.ids[i], "neighbor": other, "t": time(t), "position": eid}
            for i, other, t, eid in columns
        ]
    }


def _answered(predictor: Predictor, asked: Sequence[AskedPairs]) -> list[dict[str, Any]]:
    """Return the answers to some questions, all with relations or none."""
    src, dst, t = (torch.cat(column) for column in zip(*(each[:3] for each in asked), strict=True))
    related = [each.relation for each in asked if each.relation is not None]
    logits = predictor.logits(src, dst, t, torch.cat(related) if related else None)
    parts = torch.split(logits, [len(each.src) for each in asked])
    picked = [each.pick(part) for each, part in zip(asked, parts, strict=True)]
    begins = accumulate((len(part) for part in parts), initial=0)
    kept = torch.cat([begin + rows for begin, (rows, _) in zip(begins, picked, strict=False)])
    rows = iter(_rows(predictor.scored(src[kept], dst[kept], logits[kept])))
    answers = []
    for each, (some, place) in zip(asked, picked, strict=True):
        own = [*islice(rows, len(some))]
        if place is not None:
            own = [{**row, "place": rank} for row, rank in zip(own, place.tolist(), strict=True)]
        answers.append(each.finish(own))
    return answers


def _rows(found: ScoredPairs) -> list[dict[str, Any]]:
    """Return the columns of scores as rows; unknown values are None."""
    names = ["src", "dst", "logit", "probability", "anomaly"]
    if found.predicted_label is not None:
        names += ["predicted_label", "label_probability"]
    columns = []
    for name in names:
        column = getattr(found, name)
        if isinstance(column, Tensor):
            column = [None if isnan(x) else x for x in column.tolist()]
        columns.append(column)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _tried(call: Callable[[], Any]) -> Any:
    """Return a result, or the error."""
    try:
        return call()
    except (UnknownNode, UnknownRelation) as error:
        return Refused(404, str(error))
    except (ValueError, TypeError) as error:
        return Refused(422, str(error))
    except Exception as error:
        return error
