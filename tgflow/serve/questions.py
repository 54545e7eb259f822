"""Questions, as openapi.json describes them, and their rejection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from tgflow.base.choices import Side
from tgflow.base.text import printable
from tgflow.serve.explain import MAX_EVENTS
from tgflow.serve.predictor import PairQuery, Predictor, UnknownIds
from tgflow.serve.scored_pairs import ScoredPairs

FAULT = "a fault in tgflow; see the server's log"


class Refused(Exception):
    """Raised for a request that is rejected."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.status, self.detail, self.headers = status, detail, headers or {}

    def __str__(self) -> str:
        return self.detail

    @property
    def body(self) -> bytes:
        """The sentence as JSON."""
        return json.dumps({"detail": self.detail}).encode()


NodeId = StrictInt | StrictStr
"""An id as in the stream: a whole number or a string."""
Number = StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)]
Time = Number | datetime
"""In the unit of the stream's times, or ISO 8601; UTC without a zone."""
Nodes = Annotated[list[NodeId], Field(min_length=1)]
Features = dict[str, StrictBool | Number | StrictStr | list[Number] | None]
"""Features of an event, by the stream's columns."""
Relation = StrictInt | StrictStr
"""A relation as in the stream: a whole number or a string."""


class Unscored(NamedTuple):
    """Pairs whose scores a question needs."""

    pairs: PairQuery
    answer: Callable[[ScoredPairs], dict[str, Any]]
    """Returns the answer by their scores."""


class Question(BaseModel):
    """Base class of questions; openapi.json describes the fields."""

    path: ClassVar[str]
    """Path of the question."""
    method: ClassVar[str] = "POST"
    """GET for one whose fields are in the query of the URL."""
    counts: ClassVar[str | None] = "nodes"
    """What `size` counts, for messages; None: it is not checked before `answer` is called."""
    model_config = ConfigDict(extra="forbid")

    def size(self, num_nodes: int) -> int:
        """Return the number of pairs and nodes in the question, approximately."""
        raise NotImplementedError

    def answer(self, predictor: Predictor, most: int) -> dict[str, Any] | Unscored:
        """Return the answer, or at most `most` pairs that it needs the scores of.

        Raises:
            TypeError, ValueError: As the methods of `Predictor`.
        """
        raise NotImplementedError


class ScoreQuestion(Question):
    """Asks for the scores of pairs, or of events before they are stored."""

    path = "/score"
    counts = "pairs"

    src: Nodes
    dst: Nodes
    at: Time | list[Time] | None = None
    relation: Relation | list[Relation] | None = None
    x: Features | list[Features] | list[list[Number]] | None = None

    def size(self, num_nodes: int) -> int:
        return max(len(self.src), len(self.dst))

    def answer(self, predictor: Predictor, most: int) -> dict[str, Any] | Unscored:
        pairs = predictor.pairs_of(self.src, self.dst, self.at, self.relation)
        x = predictor.features_of(self.x, len(pairs.src))
        if predictor.labels is None:
            return Unscored(pairs, lambda found: {"scores": found.to_pylist()})
        return {"scores": predictor.score_events(pairs, x).to_pylist()}


class TopQuestion(Question):
    """Asks for the likeliest destinations of sources."""

    path = "/top-k"
    counts = None

    src: Nodes
    at: Time | list[Time] | None = None
    k: StrictInt = Field(10, ge=1)
    candidates: Nodes | None = None
    exclude_known: bool = False
    relation: Relation | list[Relation] | None = None

    def size(self, num_nodes: int) -> int:
        return len(self.src) * (num_nodes if self.candidates is None else len(self.candidates))

    def answer(self, predictor: Predictor, most: int) -> Unscored:
        new = UnknownIds(predictor.ids)
        src = predictor.find(self.src, "src", new)
        if self.candidates is None:
            others = predictor.destinations()
        else:
            others = predictor.find(self.candidates, "dst", new)
        if len(src) * len(others) > most:
            raise ValueError(
                f"{len(src):,} sources with {len(others):,} candidates each are more than "
                f"{most:,} pairs: ask for fewer sources at a time, or name candidates"
            )
        [pairs] = predictor.rankings(
            src, self.at, self.relation, others, new, self.k, self.exclude_known, len(src)
        )
        return Unscored(pairs, lambda found: {"scores": found.to_pylist()})


class EmbeddingQuestion(Question):
    """Asks for the embeddings of nodes."""

    path = "/embedding"

    ids: Nodes
    side: Side = "src"
    at: Time | list[Time] | None = None

    def size(self, num_nodes: int) -> int:
        return len(self.ids)

    def answer(self, predictor: Predictor, most: int) -> dict[str, Any]:
        nodes = predictor.find(self.ids, self.side, new := UnknownIds(predictor.ids))
        z = predictor.embed_nodes(nodes, predictor.ticks(self.at, len(nodes)), new).tolist()
        rows = zip(self.ids, z, (nodes < 0).tolist(), strict=True)
        return {"embeddings": [{"id": u, "embedding": x, "is_new": each} for u, x, each in rows]}


class NeighborQuestion(EmbeddingQuestion):
    """Asks for the latest events of nodes."""

    path = "/neighbors"

    k: StrictInt = Field(10, ge=1, le=1_000)

    def size(self, num_nodes: int) -> int:
        return len(self.ids) * self.k

    def answer(self, predictor: Predictor, most: int) -> dict[str, Any]:
        nodes = predictor.find(self.ids, self.side, UnknownIds(predictor.ids))
        found = predictor.neighbors(nodes, predictor.ticks(self.at, len(nodes)), self.k)
        mask = found.mask
        rows, time = mask.nonzero()[:, 0].tolist(), predictor.time_of
        others = predictor.ids.decode(found.nodes[mask])
        columns = zip(rows, others, found.t[mask].tolist(), found.eid[mask].tolist(), strict=True)
        return {
            "neighbors": [
                {"id": self.ids[i], "neighbor": other, "t": time(t), "position": eid}
                for i, other, t, eid in columns
            ]
        }


class ExplainQuestion(Question):
    """Asks why a pair has its score, or an event the probability of its label."""

    path = "/explain"
    counts = None

    src: NodeId | None = None
    dst: NodeId | None = None
    event: StrictInt | None = None
    at: Time | None = None
    relation: Relation | None = None
    x: Features | None = None
    of: StrictStr | None = None
    label: StrictInt | StrictStr | None = None

    def size(self, num_nodes: int) -> int:
        return 2 * MAX_EVENTS

    def answer(self, predictor: Predictor, most: int) -> dict[str, Any]:
        asked = self.src, self.dst, self.at, self.relation, self.x
        found = predictor.explain(*asked, of=self.of, label=self.label, event=self.event)
        return found.to_dict()


class AlertQuestion(Question):
    """Asks for the latest alerts of a run."""

    path = "/alerts"
    method = "GET"
    counts = None

    since: str | None = None
    limit: int = Field(100, ge=1, le=1_000)

    def size(self, num_nodes: int) -> int:
        return self.limit

    def answer(self, predictor: Predictor, most: int) -> dict[str, Any]:
        rows, num = predictor.alerts_since(self.since, self.limit)
        return {"alerts": rows, "num_alerts": num}


class Health(NamedTuple):
    """State of a replica, and its distance from the run."""

    position: int
    """Events in its answers: those before this log position."""
    parameters: int
    """Log position up to which the parameters were learned."""
    state: str
    """following, or ended once the run has."""
    behind: int
    """Events that the run has learned and answers do not include."""
    age: float
    """Seconds since answers included all events of the run."""


def sentence_of(problems: Sequence[Mapping[str, Any]]) -> str:
    """Return the error of an invalid question as a sentence."""
    first = problems[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        extra = printable(str(first["loc"][-1]), 60)
        return f"{extra} is not a field of this question; /docs lists the fields"
    name = _name_of(first)
    if not name:
        return "the body must be a JSON object with a question; /docs shows what it may have"
    if first["type"] == "missing":
        return f"{name} is missing; /docs lists the fields"
    texts = [each["msg"] for each in problems if _name_of(each) == name]
    said = [text[:1].lower() + text[1:] for text in texts]
    return f"{name}: {', or '.join(dict.fromkeys(said))}"


def _name_of(problem: Mapping[str, Any]) -> str:
    """Return the location of a problem, without the union branches that pydantic names."""
    where = [str(part) for part in problem["loc"]]
    return ".".join(part for part in where if part in _FIELDS or part.isdecimal())


QUESTIONS: tuple[type[Question], ...] = (
    ScoreQuestion,
    TopQuestion,
    EmbeddingQuestion,
    NeighborQuestion,
    ExplainQuestion,
    AlertQuestion,
)
"""The kinds of questions."""
_FIELDS = {name for question in QUESTIONS for name in question.model_fields}
