"""Settings of a task. Does not import torch, as the command line builds its help from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tgflow.base.describe import described
from tgflow.base.setting import EXPERT, Duration, Setting, Size, check_ranges

Kind = Literal["link", "edge", "node", "property", "anomaly"]


@described
@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """Settings of a task.

    Example:
        >>> tg.tasks.TaskConfig(kind="edge", target="is_fraud", label_delay="1d").has_decoder
        True
    """

    kind: Annotated[Kind, Setting(flags=("--task",))] = "link"
    """link: which events occur; edge: also the label of each; node: also labels of its source;
    property: weights of items per node and time, from embeddings and earlier weights; anomaly:
    links alone, measured by how unlikely labeled events were."""
    target: str | None = None
    """Column of the task's labels."""
    node_labels: str | None = None
    """train: file of node labels, learned after the training: for node the columns node and label,
    static; for property t, node, label and weight."""
    classes: Annotated[int, Ge(2), Le(65_536)] | None = None
    """Number of classes; unset: that of distinct labels, counted in files; else 2."""
    label_delay: Annotated[Duration | None, Setting(resume="from_now")] = None
    """Delay after its event until a label is known, such as 1d or 2h; unset: none, once the event
    has been predicted."""
    label_replay: Annotated[float, Ge(0), Le(100), Setting(resume="from_now", expert=True)] = 4.0
    """Labels that came late learned again per new event, from what the label decoder read when it
    predicted them."""
    label_memory: Annotated[Size, EXPERT] = "1GiB"
    """Disk space for predictions whose label may come later, and what the label decoder read."""
    links: Annotated[bool, EXPERT] = True
    """Learn links, too, or labels alone."""
    freeze: bool = False
    """Learn the label decoder alone, on a model that has learned links: train does that first, run
    begins with one (--init-from)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        found = {name for name in _SOURCES if getattr(self, name) is not None}
        allowed = _ALLOWED[self.kind]
        if wrong := sorted(found - set(allowed)):
            others = " or ".join(f"kind={k}" for k, own in _ALLOWED.items() if wrong[0] in own)
            raise ValueError(f"{wrong[0]} is a setting of {others}, not of the task {self.kind}")
        if self.freeze and not self.has_decoder:
            raise ValueError("freeze is for tasks whose labels have a decoder: edge, node")
        if allowed and len(found) != 1:
            raise ValueError(
                f"{allowed[0]} must name the labels of the task {self.kind}"
                + "".join(f"; or give {name}" for name in allowed[1:])
                + (", one of them alone" if found else "")
            )

    @property
    def has_decoder(self) -> bool:
        """Whether a separate decoder predicts labels of events."""
        return self.kind in ("edge", "node") and self.node_labels is None


_SOURCES = ("target", "node_labels")
_ALLOWED: Mapping[str, tuple[str, ...]] = {
    "link": (),
    "edge": ("target",),
    "node": ("target", "node_labels"),
    "property": ("node_labels",),
    "anomaly": ("target",),
}
"""Allowed sources of the labels of each task."""
