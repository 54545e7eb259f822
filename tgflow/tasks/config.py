"""Settings of a task. Nothing here needs torch: the command line's help is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from tgflow.setting import Duration, Setting, check_ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """What is to be learned of the events."""

    kind: Annotated[Literal["link", "edge", "node", "anomaly"], Setting(flags=("--task",))] = "link"
    """link: which events come; edge: also the label of each; node: also what each label says of its
    source; anomaly: links, measured by how badly labeled events are foreseen."""
    target: str | None = None
    """Column of the labels that a task is about."""
    classes: Annotated[int, Ge(2), Le(65_536)] | None = None
    """How many classes labels may have; unset: run 2, above 0 or not; train as many as there are, 2
    where they are at most 0 and at most 1."""
    label_delay: Annotated[Duration | None, Setting(resume="from_now")] = None
    """How long after its event a label is known, such as 1d or 2h; unset: at once, when the event
    has been predicted."""
    links: bool = True
    """Learn which events come, too, or labels alone."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.kind != "link" and self.target is None:
            raise ValueError(f"target must name the column of labels for the task {self.kind}")
        if self.kind == "link" and self.target is not None:
            raise ValueError("target is the labels of a task, and this one is link")

    @property
    def has_decoder(self) -> bool:
        """Whether labels are predicted by a decoder of their own."""
        return self.kind in ("edge", "node")
