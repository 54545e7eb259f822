"""What clients ask and get, as JSON; the page that explains the paths is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from tgflow.choices import Side
from tgflow.text import printable

FAULT = "a fault in tgflow; the server's log says more"


class Refused(Exception):
    """A request that gets no answer."""

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
"""An id as the stream has it: a whole number or a string."""
Time = StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | datetime
"""In the unit of the stream's times, or ISO 8601; without a zone it is UTC."""
Nodes = Annotated[list[NodeId], Field(min_length=1)]


class Question(BaseModel):
    """What all questions have in common."""

    path: ClassVar[str]
    """Where it is asked."""
    model_config = ConfigDict(extra="forbid")

    at: Time | list[Time] | None = Field(
        None, description="When: one time for all, or one for each; unset: after the last event"
    )


class ScoreQuestion(Question):
    """How likely pairs are."""

    path = "/score"
    src: Nodes = Field(description="Ids of sources")
    dst: Nodes = Field(description="Ids of destinations, as many")


class TopQuestion(Question):
    """Whom sources will meet next."""

    path = "/top-k"
    src: Nodes = Field(description="Ids of sources")
    k: StrictInt = Field(10, ge=1, description="How many of each")
    candidates: Nodes | None = Field(
        None, description="Ids of destinations to choose among; unset: all that there are"
    )
    exclude_known: bool = Field(
        False, description="Leave out those that a source has had an event with"
    )


class EmbeddingQuestion(Question):
    """Where the model sees nodes."""

    path = "/embedding"
    ids: Nodes = Field(description="Ids of nodes")
    side: Side = Field(
        "src", description="Of a bipartite stream: whether they are sources or destinations"
    )


class PairScore(BaseModel):
    """What the run says of a pair."""

    src: NodeId
    dst: NodeId
    logit: float = Field(description="The higher, the likelier")
    probability: float = Field(description="Of the event beside one random negative")
    anomaly: float | None = Field(description="Percentage of events with higher logits, if known")


class PlacedScore(PairScore):
    """What the run says of a pair among those of its source."""

    place: int = Field(description="Among those of its source, from 1")


class NodeEmbedding(BaseModel):
    """Where the model sees a node."""

    id: NodeId
    embedding: list[float]


class ScoreAnswer(BaseModel):
    """The scores of pairs, in the order of the question."""

    position: int = Field(description="Events that the run had learned")
    scores: list[PairScore]


class TopAnswer(BaseModel):
    """The likeliest destinations, best first, one source after another."""

    position: int = Field(description="Events that the run had learned")
    scores: list[PlacedScore]


class EmbeddingAnswer(BaseModel):
    """The embeddings of nodes, in the order of the question."""

    position: int = Field(description="Events that the run had learned")
    embeddings: list[NodeEmbedding]


class Health(BaseModel):
    """How the run is."""

    state: str
    position: int = Field(description="Events that the run has learned")


class Refusal(BaseModel):
    """Why there is no answer."""

    detail: str = Field(description="A sentence")


def sentence_of(problems: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with a question, as a sentence."""
    first = problems[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        extra = printable(str(first["loc"][-1]), 60)
        return f"{extra} is no part of this question; /docs shows what it may have"
    name = _name_of(first)
    if not name:
        return (
            "the body must be a JSON object with a question, sent with the header "
            "Content-Type: application/json; /docs shows what it may have"
        )
    if first["type"] == "missing":
        return f"{name} is missing; /docs shows what a question has"
    texts = [each["msg"] for each in problems if _name_of(each) == name]
    said = [text[:1].lower() + text[1:] for text in texts]
    return f"{name}: {', or '.join(dict.fromkeys(said))}"


def _name_of(problem: Mapping[str, Any]) -> str:
    """Return where a problem is, without the branches of a choice that pydantic names."""
    where = [str(part) for part in problem["loc"]]
    return ".".join(part for part in where if part in _FIELDS or part.isdecimal())


QUESTIONS = (ScoreQuestion, TopQuestion, EmbeddingQuestion)
_FIELDS = {name for question in QUESTIONS for name in question.model_fields}
