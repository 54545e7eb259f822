"""What is known of a partition after some of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tgflow.streams.ingest.watermark import PartitionProgress
from tgflow.streams.rows.row_batch import Position


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What is known of a partition after some of its rows.

    Args:
        position: Where its source resumes; None at its beginning.
        seq: The number of its next row.
        front: How far its time has come.
        is_idle: Whether it was silent for so long that it holds nobody back.
    """

    position: Position | None = None
    seq: int = 0
    front: PartitionProgress = field(default_factory=PartitionProgress)
    is_idle: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {
            "position": self.position,
            "seq": self.seq,
            "max_t": self.front.max_t,
            "floor": self.front.floor,
            "idle": self.is_idle,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PartitionState:
        """Return the state that gave `to_json()`."""
        front = PartitionProgress(value["max_t"], value["floor"])
        return cls(value["position"], value["seq"], front, value["idle"])
