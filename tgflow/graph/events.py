"""Batches of timed edges, the unit of data exchanged between parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.base.units import INT64_MIN
from tgflow.graph.id_columns import list_array

if TYPE_CHECKING:
    import pyarrow as pa

    from tgflow.graph.ids import NodeIds

NO_NODE = -1
"""Fills an empty neighbor slot; never a node's id."""
NO_EVENT = -1
"""Log position in place of a missing event."""
NO_LABEL = INT64_MIN
"""Label of an event whose label is not known; no label has this value."""
NUM_RELATIONS = 2**16
"""Relations are in [0, NUM_RELATIONS)."""


class Column(NamedTuple):
    """Dtype of a column of events, its shape in messages, and whether every batch has it."""

    dtype: torch.dtype
    form: str
    is_required: bool = True


COLUMNS = {
    "src": Column(torch.int64, "[{size}]"),
    "dst": Column(torch.int64, "[{size}]"),
    "t": Column(torch.int64, "[{size}]"),
    "relation": Column(torch.int64, "[{size}]", is_required=False),
    "label": Column(torch.int64, "[{size}]", is_required=False),
    "weight": Column(torch.float32, "[{size}]", is_required=False),
    "x": Column(torch.float32, "[{size}, x_dim]", is_required=False),
}
"""Columns of an `EventBatch`, by field name."""


def as_column(name: str, values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return a tensor as it is, and a NumPy array or list, of integers for int64, as `dtype`."""
    if isinstance(values, Tensor):
        return values
    array = np.array(values)  # a copy: torch warns of arrays that are not writable
    if dtype is torch.int64 and array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{name} must be integers, got {array.dtype}: {array.reshape(-1)[0]!r}")
    return torch.as_tensor(array).to(dtype)


@described
@dataclass(frozen=True, slots=True, eq=False)
class NewNodes:
    """Features of nodes, which come with the events that mention them first, or earlier.

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
        """Return the features of a node and those after it; None if there are none."""
        if self.stop <= node:
            return None
        return self if self.start >= node else NewNodes(node, self.x[node - self.start :])


@described
@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """Timed edges in arrival order, with dense node ids.

    Columns may be given as NumPy arrays or lists, which are converted.

    Args:
        src: Source nodes, int64 `[B]`, each at least 0.
        dst: Destination nodes, int64 `[B]`, each at least 0.
        t: Times in the stream's ticks, int64 `[B]`. A log accepts them only if they never decrease.
        x: Edge features, float32 `[B, x_dim]`, or None.
        label: Labels to learn, int64 `[B]`, `NO_LABEL` where not known; or None.
        weight: Weights of the events in the training loss, float32 `[B]`, finite and at least 0;
            None: 1 each.
        relation: Relations, that is types of edges, int64 `[B]` in [0, 65535], or None.
        new_nodes: Features of nodes that no earlier batch has mentioned, or None. Slices of a batch
            keep all of them: known nodes are skipped.

    Raises:
        ValueError: If a column has another dtype, shape or length, a node id is negative, a
            relation is out of range, or a weight is negative or not finite.

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
    weight: Tensor | None = None
    relation: Tensor | None = None
    new_nodes: NewNodes | None = None

    def __post_init__(self) -> None:
        size = len(self.src)
        for name, (dtype, form, _) in COLUMNS.items():
            if (column := getattr(self, name)) is None:
                continue
            if not isinstance(column, Tensor):
                column = as_column(name, column, dtype)
                object.__setattr__(self, name, column)
            if column.dtype != dtype or column.dim() != form.count(",") + 1 or len(column) != size:
                expected = f"{str(dtype).removeprefix('torch.')} {form.format(size=size)}"
                got = f"{column.dtype} {list(column.shape)}"
                raise ValueError(f"{name} must be {expected}, got {got}")
        for name in ("src", "dst"):
            if size and int((column := getattr(self, name)).min()) < 0:
                self._refuse(name, column < 0, "ids start at 0")
        if self.relation is not None:
            is_outside = (self.relation < 0) | (self.relation >= NUM_RELATIONS)
            self._refuse("relation", is_outside, f"relations must be in [0, {NUM_RELATIONS - 1}]")
        if self.weight is not None:
            is_bad = ~((self.weight >= 0) & self.weight.isfinite())
            self._refuse("weight", is_bad, "weights must be finite and at least 0")

    def _refuse(self, name: str, is_bad: Tensor, rule: str) -> None:
        if bool(is_bad.any()):
            row = int(is_bad.nonzero()[0])
            value = getattr(self, name)[row].item()
            raise ValueError(f"{name} of event {row} is {value}; {rule}")

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, index: slice | Tensor) -> EventBatch:
        """Return the events at `index`: a slice (views) or an int64 tensor of rows (copies)."""
        found = ((name, getattr(self, name)) for name in COLUMNS)
        columns: dict[str, Any] = {name: None if c is None else c[index] for name, c in found}
        make = EventBatch.checked if isinstance(index, slice) else EventBatch
        return make(**columns, new_nodes=self.new_nodes)

    @classmethod
    def checked(cls, *, new_nodes: NewNodes | None = None, **columns: Tensor | None) -> EventBatch:
        """Return a batch of `COLUMNS` without checks, for example of slices of a batch."""
        batch = object.__new__(cls)
        for name in COLUMNS:
            object.__setattr__(batch, name, columns.get(name))
        object.__setattr__(batch, "new_nodes", new_nodes)
        return batch

    @property
    def x_dim(self) -> int:
        """Width of the edge features, 0 without any."""
        return 0 if self.x is None else self.x.shape[1]

    def to_arrow(self, ids: NodeIds | None = None) -> pa.RecordBatch:
        """Return a row per event: src, dst, t in ticks, optional columns, features as f0, ...

        Labels that are not known are null.

        Args:
            ids: Ids of the stream, such as `source.ids` or `run.ids`, to decode nodes with.
                None: dense ids.

        Raises:
            IndexError: If `ids` does not contain one of the nodes.
        """
        import pyarrow as pa

        def named(nodes: Tensor) -> pa.Array:
            return pa.array(nodes.cpu().numpy()) if ids is None else list_array(ids.decode(nodes))

        columns: dict[str, pa.Array] = {}
        for name in COLUMNS:
            values = getattr(self, name)
            if values is None:
                continue
            if name in ("src", "dst"):
                columns[name] = named(values)
            elif values.dim() == 1:
                column = values.cpu().numpy()
                mask = column == NO_LABEL if name == "label" and len(column) else None
                columns[name] = pa.array(column, mask=mask)
            else:
                prefix, rows = "f" if name == "x" else name, values.cpu()
                columns |= {f"{prefix}{i}": pa.array(c.numpy()) for i, c in enumerate(rows.T)}
        return pa.RecordBatch.from_pydict(columns)

    def to_pandas(self, ids: NodeIds | None = None) -> Any:
        """Return `to_arrow(ids)` as a pandas frame; needs pandas.

        Args:
            ids: As `to_arrow`.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
            IndexError: As `to_arrow`.
        """
        import_module("pandas")  # required by pyarrow
        return self.to_arrow(ids).to_pandas()


@described
@dataclass(frozen=True, slots=True, eq=False)
class LateLabels:
    """Labels that come after their events, in the order in which they come.

    In a stream they stand between batches of events: they take no log position, and are written at
    the log's end of then. Columns may be given as NumPy arrays or lists, which are converted.

    Args:
        eid: Log positions of their events, int64 `[N]`.
        label: Labels, int64 `[N]`; `NO_LABEL` withdraws one.
        t: Ticks at which they came, int64 `[N]`.

    Raises:
        ValueError: If a column is not int64 `[N]`.
    """

    eid: Tensor
    label: Tensor
    t: Tensor

    def __post_init__(self) -> None:
        for name in ("eid", "label", "t"):
            column = as_column(name, getattr(self, name))
            if column.dtype != torch.int64 or column.shape != (len(self.eid),):
                got = f"{column.dtype} {list(column.shape)}"
                raise ValueError(f"{name} must be int64 [{len(self.eid)}], got {got}")
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.eid)


def empty_events(x_dim: int = 0) -> EventBatch:
    """Return an empty batch with `x_dim` edge features."""
    none = torch.empty(0, dtype=torch.int64)
    x = torch.empty(0, x_dim) if x_dim else None
    return EventBatch(none, none, none, x)


MICRO_BATCH_END = empty_events()
"""Marker in a stream, compared by identity: learn the current micro-batch before it is full."""


def concat(batches: Sequence[EventBatch]) -> EventBatch:
    """Return the concatenation of `batches`; ValueError if only some have an optional column."""
    if not batches:
        return empty_events()
    columns: dict[str, Any] = {name: _concat_column(batches, name) for name in COLUMNS}
    return EventBatch(**columns, new_nodes=_concat_nodes(batches))


def with_inverses(events: EventBatch) -> EventBatch:
    """Return each event followed by its inverse: from `dst` to `src`, with all other columns.

    Relation `r` becomes `2 r`, and that of the inverse is `2 r + 1`; without relations they are 0
    and 1. So a model that ranks destinations ranks sources, too. ValueError for a relation above
    32,767, whose inverse would have no number.
    """
    both = torch.arange(2 * len(events)) // 2
    columns: dict[str, Any] = {
        name: column[both] for name in COLUMNS if (column := getattr(events, name)) is not None
    }
    relation = torch.zeros_like(events.src) if events.relation is None else events.relation
    columns["src"] = torch.stack([events.src, events.dst], dim=1).flatten()
    columns["dst"] = torch.stack([events.dst, events.src], dim=1).flatten()
    columns["relation"] = torch.stack([2 * relation, 2 * relation + 1], dim=1).flatten()
    return EventBatch(**columns, new_nodes=events.new_nodes)


def _concat_nodes(batches: Sequence[EventBatch]) -> NewNodes | None:
    """Return the new nodes of consecutive batches, each once."""
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


def _concat_column(batches: Sequence[EventBatch], name: str) -> Tensor | None:
    parts = [part for b in batches if (part := getattr(b, name)) is not None]
    if not parts:
        return None
    if len(parts) != len(batches):
        raise ValueError(f"{len(batches) - len(parts)} of {len(batches)} batches lack {name}")
    return torch.cat(parts)
