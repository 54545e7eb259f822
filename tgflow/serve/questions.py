"""JSON schemas of requests and responses, from which the page of the paths is built."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from tgflow.choices import Side
from tgflow.text import printable

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
Relation = StrictInt | StrictStr
"""A relation as in the stream: a whole number or a string."""
_RELATIONS = "One relation for all, or one for each; for models that depend on relations"


def _example(**question: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [question]})


class Question(BaseModel):
    """Base class of questions."""

    path: ClassVar[str]
    """Path of the question."""
    model_config = ConfigDict(extra="forbid")

    at: Time | list[Time] | None = Field(
        None, description="One time for all, or one for each; unset: after the last event"
    )


class ScoreQuestion(Question):
    """Asks for the scores of pairs, or of events before they are stored."""

    path = "/score"
    model_config = _example(src=["acc_9", "acc_9"], dst=["shop_1", "shop_2"])

    src: Nodes = Field(description="Ids of sources")
    dst: Nodes = Field(description="Ids of destinations, one per source")
    relation: Relation | list[Relation] | None = Field(None, description=_RELATIONS)
    x: list[list[Number]] | None = Field(
        None,
        description="Features of each event, in the order of the stream's feature columns: for the "
        "probability of its label",
    )


class TopQuestion(Question):
    """Asks for the likeliest destinations of sources."""

    path = "/top-k"
    model_config = _example(src=["acc_9"], k=3, exclude_known=True)

    src: Nodes = Field(description="Ids of sources")
    k: StrictInt = Field(10, ge=1, description="Destinations of each source")
    candidates: Nodes | None = Field(
        None, description="Ids of destinations to choose among; unset: all destinations"
    )
    exclude_known: bool = Field(
        False, description="Omit destinations that a source has had an event with"
    )
    relation: Relation | list[Relation] | None = Field(None, description=_RELATIONS)


class EmbeddingQuestion(Question):
    """Asks for the embeddings of nodes."""

    path = "/embedding"
    model_config = _example(ids=["acc_9", "acc_10"])

    ids: Nodes = Field(description="Ids of nodes")
    side: Side = Field(
        "src", description="For a bipartite stream: whether they are sources or destinations"
    )


class NeighborQuestion(EmbeddingQuestion):
    """Asks for the latest events of nodes."""

    path = "/neighbors"
    model_config = _example(ids=["acc_9"], k=5)

    k: StrictInt = Field(10, ge=1, le=1_000, description="Latest events of each node")


class ExplainQuestion(Question):
    """Asks why a pair has its score."""

    path = "/explain"
    model_config = _example(src="acc_9", dst="shop_1")

    src: NodeId = Field(description="Id of the source")
    dst: NodeId = Field(description="Id of the destination")
    at: Time | None = Field(None, description="A time; unset: after the last event")
    relation: Relation | None = Field(
        None, description="A relation; for models that depend on relations"
    )


class AnswerVersion(BaseModel):
    """Version of the answering model."""

    position: int = Field(description="Events in the answer: those before this log position")
    parameters: int = Field(description="Log position up to which the parameters were learned")


class PairScore(BaseModel):
    """The scores of a pair; null for an unknown id."""

    src: NodeId
    dst: NodeId
    logit: float | None = Field(description="Higher is likelier")
    probability: float | None = Field(description="Of the event against one random negative")
    anomaly: float | None = Field(description="Percentage of events with higher logits, if known")


class EventScore(PairScore):
    """The scores of an event; of its label in runs with a task."""

    predicted_label: int | str | None = Field(None, description="The likeliest label, if known")
    label_probability: float | None = Field(
        None, description="Of label 1 of two classes, else of the predicted one"
    )


class PlacedScore(PairScore):
    """The scores of a pair, and its rank among those of its source."""

    place: int = Field(description="Among those of its source, from 1")


class NodeEmbedding(BaseModel):
    """The embedding of a node; null for an unknown id."""

    id: NodeId
    embedding: list[float] | None


class NeighborEvent(BaseModel):
    """An event of a node."""

    id: NodeId = Field(description="The node that was asked about")
    neighbor: NodeId
    t: float = Field(description="In the unit of the stream's times")
    position: int = Field(description="Log position of the event")


class ScoreAnswer(AnswerVersion):
    """The scores of pairs, in the order of the question."""

    scores: list[EventScore]


class TopAnswer(AnswerVersion):
    """The likeliest destinations, best first, one source after another; none of an unknown one."""

    scores: list[PlacedScore]


class EmbeddingAnswer(AnswerVersion):
    """The embeddings of nodes, in the order of the question."""

    embeddings: list[NodeEmbedding]


class NeighborAnswer(AnswerVersion):
    """The latest events, newest first, one node after another; none of an unknown one."""

    neighbors: list[NeighborEvent]


class GroupContribution(BaseModel):
    """The contribution of a group of inputs."""

    name: str
    logit: float = Field(description="Its Shapley value")
    text: str = Field(description="The group in words")
    events: list[int] = Field(description="Positions of its latest events, latest first")


class PastEvent(BaseModel):
    """A past event, and its effect."""

    eid: int = Field(description="Position in the run")
    src: NodeId
    dst: NodeId
    t: float = Field(description="In the unit of the stream's times")
    drop: float = Field(description="Logit with the event minus logit without it")


class ExplainAnswer(AnswerVersion):
    """Why a pair has its score: `baseline` plus the logits of `groups` is `logit`."""

    src: NodeId
    dst: NodeId
    t: float = Field(description="In the unit of the stream's times")
    logit: float | None = Field(description="Higher is likelier; null for an unknown id")
    probability: float | None = Field(description="Of the event against one random negative")
    baseline: float | None = Field(description="Logit of a pair without history")
    groups: list[GroupContribution] = Field(description="Largest contributions first")
    events: list[PastEvent] = Field(description="Those that raise the logit most first")
    num_to_halve: int | None = Field(
        description="How many of the first events must be removed to halve the probability"
    )
    probability_left: float | None = Field(description="Once all of the events are removed")
    note: str = Field(description="Why there is no score")


class Health(AnswerVersion):
    """State of a replica, and its distance from the run."""

    state: str = Field(description="following, or ended once the run has")
    behind: int = Field(description="Events that the run has learned and answers do not include")
    age: float = Field(description="Seconds since answers included all events of the run")


class Refusal(BaseModel):
    """The error of a rejected request."""

    detail: str = Field(description="A sentence")


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


QUESTIONS: Mapping[type[Question], tuple[type[BaseModel], str]] = {
    ScoreQuestion: (ScoreAnswer, "Scores of pairs, and of events before they are stored"),
    TopQuestion: (TopAnswer, "Likeliest destinations of sources"),
    EmbeddingQuestion: (EmbeddingAnswer, "Embeddings of nodes"),
    NeighborQuestion: (NeighborAnswer, "Latest events of nodes"),
    ExplainQuestion: (ExplainAnswer, "Why a pair has its score"),
}
"""The kinds of questions, with their answers and titles."""
_FIELDS = {name for question in QUESTIONS for name in question.model_fields}
