"""Scores of pairs, by the ids of their stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import isnan
from typing import Any, Literal

import pyarrow as pa
import torch
from torch import Tensor

from tgflow.base.describe import described
from tgflow.graph.id_columns import list_array

RankedBy = Literal["model", "popularity"]


def label_column(label: str | int) -> str:
    """Return the column of a label's probability in rows of scores."""
    return f"label_probability.{label}"


@described
@dataclass(frozen=True, slots=True, eq=False)
class ScoredPairs:
    """Scores of some pairs, by the ids of their stream.

    Example:
        >>> logit, probability, anomaly = torch.tensor([[0.5, -0.5], [0.75, 0.25], [10.0, 60.0]])
        >>> pairs = tg.serve.ScoredPairs(["ann", "ann"], ["bob", "cy"], logit, probability, anomaly)
        >>> pairs[:1].to_arrow().to_pylist()
        [{'src': 'ann', 'dst': 'bob', 'logit': 0.5, 'probability': 0.75, 'anomaly': 10.0}]
    """

    src: list[Any]
    """Source of each pair."""
    dst: list[Any]
    """Destination of each pair."""
    logit: Tensor
    """Float `[N]`: higher is likelier."""
    probability: Tensor
    """float64 `[N]`: of the event against one random negative; calibrated as far as the run has
    been scored (`scores=True`, `--scores`), else the logistic function of the logit."""
    anomaly: Tensor
    """float64 `[N]`: percentage of the run's events with higher logits; NaN if unknown."""
    place: Tensor | None = None
    """int64 `[N]`: in a ranking, the rank of each among those of its source, from 1."""
    ranked_by: list[RankedBy] | None = None
    """In a ranking, what the destinations of each pair's source are ranked by: popularity for a
    source without events."""
    new: list[str | None] | None = None
    """The ends of each pair that no learned event has: "src", "dst", "both" or None. Such a node is
    scored as the run scores it at its first event."""
    predicted_label: list[Any] | None = None
    """The likeliest label of each event, None if unknown; without a task that predicts labels None
    for all."""
    label_probability: Tensor | None = None
    """float64 `[N]`: of label 1 of two classes, else of the predicted label; NaN if unknown."""
    label_probabilities: dict[Any, Tensor] | None = None
    """float64 `[N]` by label, of more than two classes; NaN of one that no learned event has. In
    rows they are `label_probability.LABEL`."""

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, rows: slice) -> ScoredPairs:
        """Return some of the pairs."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        columns: dict[str, Any] = {
            name: {key: column[rows] for key, column in x.items()}
            if isinstance(x, dict)
            else x
            if x is None
            else x[rows]
            for name, x in found
        }
        return ScoredPairs(**columns)

    @classmethod
    def joined(cls, parts: Sequence[ScoredPairs]) -> ScoredPairs:
        """Return the pairs of at least one part, all with the same columns, one after another."""
        columns: dict[str, Any] = {}
        for field in fields(cls):
            found = [getattr(each, field.name) for each in parts]
            if found[0] is not None:
                is_tensor = isinstance(found[0], Tensor)
                columns[field.name] = torch.cat(found) if is_tensor else [*chain(*found)]
        return cls(**columns)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return a row for each pair; unknown values are None."""
        columns: dict[str, list[Any]] = {}
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        del every["label_probabilities"]
        for name, x in (every | self._of_labels()).items():
            if isinstance(x, Tensor):
                columns[name] = [None if isnan(each) else each for each in x.tolist()]
            elif x is not None:
                columns[name] = x
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _of_labels(self) -> dict[str, Tensor]:
        found = self.label_probabilities or {}
        return {label_column(label): column for label, column in found.items()}

    def to_arrow(self) -> pa.Table:
        """Return a row for each pair; unknown values are null."""
        columns = {"src": list_array(self.src), "dst": list_array(self.dst)}
        if self.place is not None:
            columns["place"] = pa.array(self.place.numpy())
        if self.ranked_by is not None:
            columns["ranked_by"] = pa.array(self.ranked_by, pa.string())
        for name in ("logit", "probability", "anomaly"):
            column = getattr(self, name).double().cpu().numpy()
            columns[name] = pa.array(column, from_pandas=True)
        if self.new is not None:
            columns["new"] = pa.array(self.new, pa.string())
        if self.predicted_label is not None and self.label_probability is not None:
            columns["predicted_label"] = pa.array(self.predicted_label)
            share = self.label_probability.cpu().numpy()
            columns["label_probability"] = pa.array(share, from_pandas=True)
        for name, x in self._of_labels().items():
            columns[name] = pa.array(x.cpu().numpy(), from_pandas=True)
        return pa.table(columns)

    def to_pandas(self) -> Any:
        """Return `to_arrow()` as a pandas frame; needs pandas."""
        return self.to_arrow().to_pandas()
