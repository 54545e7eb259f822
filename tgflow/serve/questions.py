"""Questions, as openapi.json describes them, and their rejection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from tgflow.base.choices import Side
from tgflow.base.text import printable

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


class Question(BaseModel):
    """Base class of questions; openapi.json describes the fields."""

    path: ClassVar[str]
    """Path of the question."""
    model_config = ConfigDict(extra="forbid")

    at: Time | list[Time] | None = None


class ScoreQuestion(Question):
    """Asks for the scores of pairs, or of events before they are stored."""

    path = "/score"

    src: Nodes
    dst: Nodes
    relation: Relation | list[Relation] | None = None
    x: list[list[Number]] | None = None


class TopQuestion(Question):
    """Asks for the likeliest destinations of sources."""

    path = "/top-k"

    src: Nodes
    k: StrictInt = Field(10, ge=1)
    candidates: Nodes | None = None
    exclude_known: bool = False
    relation: Relation | list[Relation] | None = None


class EmbeddingQuestion(Question):
    """Asks for the embeddings of nodes."""

    path = "/embedding"

    ids: Nodes
    side: Side = "src"


class NeighborQuestion(EmbeddingQuestion):
    """Asks for the latest events of nodes."""

    path = "/neighbors"

    k: StrictInt = Field(10, ge=1, le=1_000)


class ExplainQuestion(Question):
    """Asks why a pair has its score."""

    path = "/explain"

    src: NodeId
    dst: NodeId
    at: Time | None = None
    relation: Relation | None = None


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
)
"""The kinds of questions."""
_FIELDS = {name for question in QUESTIONS for name in question.model_fields}
