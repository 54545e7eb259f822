"""tgflow: continual learning on temporal graphs."""

from tgflow.events import NO_NODE, EventBatch

__all__ = ["NO_NODE", "EventBatch"]
