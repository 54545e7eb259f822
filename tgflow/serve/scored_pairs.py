"""Scores of pairs, by the ids of their stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from torch import Tensor

from tgflow._id_columns import list_array
from tgflow.describe import described


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

    def __len__(self) -> int:
        return len(self.src)

    def __getitem__(self, rows: slice) -> ScoredPairs:
        """Return some of the pairs."""
        place = None if self.place is None else self.place[rows]
        columns = (self.logit[rows], self.probability[rows], self.anomaly[rows])
        return ScoredPairs(self.src[rows], self.dst[rows], *columns, place)

    def to_arrow(self) -> pa.Table:
        """Return a row for each pair; unknown values are null."""
        columns = {"src": list_array(self.src), "dst": list_array(self.dst)}
        if self.place is not None:
            columns["place"] = pa.array(self.place.numpy())
        for name in ("logit", "probability", "anomaly"):
            column = getattr(self, name).double().cpu().numpy()
            columns[name] = pa.array(column, from_pandas=True)
        return pa.table(columns)

    def to_pandas(self) -> Any:
        """Return `to_arrow()` as a pandas frame; needs pandas."""
        return self.to_arrow().to_pandas()
