"""The currency of tgflow: a batch of timed edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tgflow._id_columns import list_array
from tgflow.describe import described

if TYPE_CHECKING:
    import pyarrow as pa

    from tgflow.ids import NodeIds

NO_NODE = -1
"""Fills a neighbor slot that holds nobody; never a node's id."""
NO_EVENT = -1
"""In place of a log position where there is no event."""


@described
@dataclass(frozen=True, slots=True, eq=False)
class NewNodes:
    """Features of nodes that come with the events that mention them first, or earlier.

    Args:
        start: The first of the nodes.
        x: Features of nodes `start`, `start + 1`, ..., float32 `[N, node_x_dim]`.
    """

    start: int
    x: Tensor

    @property
    def stop(self) -> int:
        """The node after the last one."""
        return self.start + len(self.x)

    def since(self, node: int) -> NewNodes | None:
        """Return what there is of a node and those after it; None if there is nothing."""
        if self.stop <= node:
            return None
        return self if self.start >= node else NewNodes(node, self.x[node - self.start :])


@described
@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """Timed edges in arrival order, with dense node ids.

    Args:
        src: Source nodes, int64 `[B]`, each at least 0.
        dst: Destination nodes, int64 `[B]`, each at least 0.
        t: Times in the stream's ticks, int64 `[B]`. A log accepts them only if they never decrease.
        x: Edge features, float32 `[B, x_dim]`, or None.
        label: Edge types or labels, int64 `[B]`, or None.
        new_nodes: Features of nodes that no batch before has mentioned, or None. Parts of a batch
            have all of them: nodes that are known already are passed over.

    Raises:
        ValueError: If a column has another dtype, shape or length, or a node id is negative.

    Example:
        >>> src, dst, t = torch.tensor([[0, 1], [2, 2], [10, 20]])
        >>> batch = tg.EventBatch(src, dst, t, x=torch.tensor([[0.5], [2.0]]))
        >>> batch[1:].to_arrow().to_pylist()
        [{'src': 1, 'dst': 2, 't': 20, 'f0': 2.0}]
    """

    src: Tensor
    dst: Tensor
    t: Tensor
    x: Tensor | None = None
    label: Tensor | None = None
    new_nodes: NewNodes | None = None

    def __post_init__(self) -> None:
        size = len(self.src)
        for name in ("src", "dst", "t", "label"):
            column = getattr(self, name)
            if column is None:
                continue
            if column.dtype != torch.int64 or column.shape != (size,):
                raise ValueError(
                    f"{name} must be int64 [{size}], got {column.dtype} {list(column.shape)}"
                )
        if self.x is not None and (
            self.x.dtype != torch.float32 or self.x.dim() != 2 or len(self.x) != size
        ):
            raise ValueError(
                f"x must be float32 [{size}, x_dim], got {self.x.dtype} {list(self.x.shape)}"
            )
        for name in ("src", "dst"):
            column = getattr(self, name)
            if size and int(column.min()) < 0:
                row = int((column < 0).nonzero()[0])
                raise ValueError(f"{name} of event {row} is {int(column[row])}; ids start at 0")

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, index: slice | Tensor) -> EventBatch:
        """Return the events at `index`: a slice (views) or an int64 tensor of rows (copies)."""
        x = None if self.x is None else self.x[index]
        label = None if self.label is None else self.label[index]
        columns = self.src[index], self.dst[index], self.t[index], x, label, self.new_nodes
        return EventBatch.checked(*columns) if isinstance(index, slice) else EventBatch(*columns)

    @classmethod
    def checked(
        cls,
        src: Tensor,
        dst: Tensor,
        t: Tensor,
        x: Tensor | None = None,
        label: Tensor | None = None,
        new_nodes: NewNodes | None = None,
    ) -> EventBatch:
        """Return a batch of columns that are known to be right, such as parts of a batch's."""
        batch = object.__new__(cls)
        for name, column in (("src", src), ("dst", dst), ("t", t), ("x", x), ("label", label)):
            object.__setattr__(batch, name, column)
        object.__setattr__(batch, "new_nodes", new_nodes)
        return batch

    @property
    def x_dim(self) -> int:
        """Width of the edge features, 0 without them."""
        return 0 if self.x is None else self.x.shape[1]

    def to_arrow(self, ids: NodeIds | None = None) -> pa.RecordBatch:
        """Return a row for each event: src, dst, t in ticks, label, and features as f0, f1, ...

        Args:
            ids: The stream's, as `source.ids` or `run.ids`: nodes are then called as it calls them.
                None: by their dense ids.

        Raises:
            IndexError: If `ids` has never given out one of the nodes.
        """
        import pyarrow as pa

        def named(nodes: Tensor) -> pa.Array:
            return pa.array(nodes.cpu().numpy()) if ids is None else list_array(ids.decode(nodes))

        columns = {"src": named(self.src), "dst": named(self.dst)}
        columns["t"] = pa.array(self.t.cpu().numpy())
        if self.label is not None:
            columns["label"] = pa.array(self.label.cpu().numpy())
        if self.x is not None:
            x = self.x.cpu()
            columns |= {f"f{i}": pa.array(x[:, i].numpy()) for i in range(self.x_dim)}
        return pa.RecordBatch.from_pydict(columns)

    def to_pandas(self, ids: NodeIds | None = None) -> Any:
        """Return `to_arrow(ids)` as a pandas frame; needs pandas.

        Args:
            ids: As `to_arrow`.

        Raises:
            ModuleNotFoundError: If there is no pandas.
            IndexError: As `to_arrow`.
        """
        import_module("pandas")  # which pyarrow takes for granted
        return self.to_arrow(ids).to_pandas()


def empty_events(x_dim: int = 0) -> EventBatch:
    """Return a batch of no events, with `x_dim` edge features."""
    none = torch.empty(0, dtype=torch.int64)
    x = torch.empty(0, x_dim) if x_dim else None
    return EventBatch(none, none, none, x)


MICRO_BATCH_END = empty_events()
"""In a stream, this very object: the micro-batch that fills up is learned as it is."""


def concat(batches: Sequence[EventBatch]) -> EventBatch:
    """Return `batches` one after another.

    Raises:
        ValueError: If some have features (or labels) and others have not.
    """
    if not batches:
        return empty_events()
    src, dst, t = (torch.cat([getattr(b, name) for b in batches]) for name in ("src", "dst", "t"))
    x, label = (_concat_optional(batches, name) for name in ("x", "label"))
    return EventBatch(src, dst, t, x, label, _concat_nodes(batches))


def _concat_nodes(batches: Sequence[EventBatch]) -> NewNodes | None:
    """Return the new nodes of batches that follow each other, each once."""
    found: list[NewNodes] = []
    for batch in batches:
        new = batch.new_nodes
        if new is not None and found:
            new = new.since(found[-1].stop)
        if new is not None:
            found.append(new)
    if len(found) < 2:
        return found[0] if found else None
    return NewNodes(found[0].start, torch.cat([new.x for new in found]))


def _concat_optional(batches: Sequence[EventBatch], name: str) -> Tensor | None:
    parts = [part for b in batches if (part := getattr(b, name)) is not None]
    if not parts:
        return None
    if len(parts) != len(batches):
        raise ValueError(f"{len(batches) - len(parts)} of {len(batches)} batches lack {name}")
    return torch.cat(parts)
