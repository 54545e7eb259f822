"""Online standardization of features: running statistics of earlier events, then frozen."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tgflow.base.describe import described

FeatureScaling = Literal["auto", "standard", "log"]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.float32]

FREEZE_AT = 10_000
"""Events after which the statistics are frozen."""
JUDGED_AT = (100, 1_000)
"""Numbers of events at which skewed columns are determined; and at the freeze."""
SKEWED = 2.0
"""Absolute skewness from which a column is skewed: that of an exponential distribution is 2."""
MOST = 10.0
"""Clipping bound, in deviations from the mean."""


@dataclass(frozen=True)
class Moments:
    """Statistics of the columns after some events."""

    size: int
    shift: Floats
    sums: Floats
    logged: Bools

    def figures(self, sums: Floats, sizes: Floats | float) -> tuple[Floats, Floats]:
        """Return mean and deviation of the transformed columns, from sums `[..., 5, F]`."""
        first = np.where(self.logged, sums[..., 3, :], sums[..., 0, :])
        second = np.where(self.logged, sums[..., 4, :], sums[..., 1, :])
        mean = first / sizes
        return mean, np.sqrt(np.maximum(second / sizes - mean * mean, 0.0))

    def skewness(self) -> Floats:
        """Return the skewness of each raw column, float64 `[F]`; 0 for a constant one."""
        mean, second, third = self.sums[:3] / max(self.size, 1)
        deviation = np.sqrt(np.maximum(second - mean * mean, 0.0))
        central = third - 3 * mean * second + 2 * mean**3
        constant = self.is_constant(deviation)
        return np.where(constant, 0.0, central / np.where(constant, 1.0, deviation) ** 3)

    def is_constant(self, deviation: Floats) -> Bools:
        """Return which columns with these deviations `[..., F]` are constant up to rounding."""
        return np.asarray(deviation <= 1e-12 * (1.0 + np.abs(self.shift[0])))


@described
class FeatureScale:
    """Scales edge features to mean 0 and deviation 1, by statistics up to and with each event.

    A row becomes `(f(x) - mean) / deviation`, cut to +-10, where f is the identity or the signed
    logarithm `sign(x) log(1 + |x|)`. Mean and deviation are those of the events up to this one, and
    from `freeze_at` events on those of the first `freeze_at`. "auto" applies the logarithm to
    columns whose skewness is beyond +-2, determined after 100, 1,000 and `freeze_at` events. A
    column that has been constant so far is 0. The result does not depend on how rows are batched,
    nor on any later row.

    Args:
        kind: "standard" applies the logarithm to no column, "log" to all, "auto" to skewed ones.
        freeze_at: Most events that the statistics cover.

    Raises:
        ValueError: If `kind` is unknown, or `freeze_at` below 1.

    Example:
        >>> graph = tg.TemporalGraph(edge_x_dim=1, feature_scale=tg.graph.FeatureScale("auto"))
    """

    def __init__(self, kind: FeatureScaling = "auto", freeze_at: int = FREEZE_AT) -> None:
        if kind not in get_args(FeatureScaling):
            raise ValueError(f"feature scale must be auto, standard or log, got {kind!r}")
        if freeze_at < 1:
            raise ValueError(f"freeze_at must be at least 1, got {freeze_at}")
        self.kind, self.freeze_at = kind, freeze_at
        self._now: Moments | None = None
        self._saved: Moments | None = None
        """Statistics at the last `state_at`, and the rows since."""
        self._rows: list[Floats] = []
        self._changing = threading.Lock()
        """Rows are added by another thread than the one that checkpoints."""

    def unfitted(self) -> FeatureScale:
        """Return a scale of this kind without statistics."""
        return FeatureScale(self.kind, self.freeze_at)

    def _facts(self) -> dict[str, object]:
        return {"kind": self.kind, "freeze_at": self.freeze_at, "size": self.size}

    @property
    def size(self) -> int:
        """Events seen, at most `freeze_at`."""
        return 0 if self._now is None else self._now.size

    def scaled(self, x: Tensor) -> tuple[Tensor, Moments | None]:
        """Return rows `[B, F]` scaled, float32, and the statistics after them.

        Changes nothing until `keep` is called.
        """
        if not len(x):
            return x, self._now
        done, known = self._after(self._now, _rows_of(x))
        return torch.from_numpy(done), known

    def keep(self, x: Tensor, known: Moments | None) -> None:
        """Commit the result of `scaled` for `x`, once these rows are stored."""
        room = self.freeze_at - self.size
        with self._changing:
            if room > 0 and len(x):
                self._rows.append(_rows_of(x[:room]))
            self._now = known

    def state_at(self, num_events: int) -> dict[str, Tensor]:
        """Return the statistics after `num_events`, as tensors for `load`.

        Raises:
            ValueError: If that is before the position of the last call.
        """
        done = 0 if self._saved is None else self._saved.size
        wanted = min(num_events, self.freeze_at) - done
        if wanted < 0:
            raise ValueError(f"no statistics after {num_events} events are left, only after {done}")
        with self._changing:
            if wanted and self._rows:
                rows = np.concatenate(self._rows)
                _, self._saved = self._after(self._saved, rows[:wanted])
                self._rows = [rows[wanted:]]
        return _tensors(self._saved)

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Load the statistics that `state_at` returned.

        Raises:
            KeyError: If a tensor is missing.
            ValueError: If a tensor is invalid.
        """
        self._rows = []
        self._now = self._saved = _moments(saved, self.freeze_at)

    def line(self, what: str = "features", of: str = "events") -> str:
        """Return a sentence that describes the scaling.

        Args:
            what: Name of the columns.
            of: Name of the rows.
        """
        if self._now is None:
            return f"{what}: none came"
        num, logged = self._now.logged.size, int(self._now.logged.sum())
        logs = f"{logged} of {num} columns as signed logarithm, " if logged else ""
        until = "frozen" if self.size == self.freeze_at else "so far"
        seen = f"{self.size:,} {of} ({until})"
        return f"{what}: {logs}all to mean 0 and deviation 1 by the first {seen}"

    def _after(self, known: Moments | None, rows: Floats) -> tuple[Rows, Moments]:
        """Return at least one row scaled, and the statistics after all of them."""
        now, parts, start = known or _begun(rows[0], self.kind), [], 0
        while start < len(rows):
            ahead = (place - now.size for place in (*JUDGED_AT, self.freeze_at))
            stop = min(len(rows), *(start + num for num in ahead if num > 0), len(rows))
            part, now = self._advanced(now, rows[start:stop])
            parts.append(part)
            start = stop
        return np.concatenate(parts), now

    def _advanced(self, known: Moments, rows: Floats) -> tuple[Rows, Moments]:
        if known.size >= self.freeze_at:
            mean, deviation = known.figures(known.sums, float(known.size))
            return _scaled(rows, known, mean, deviation), known
        raw = rows - known.shift[0]
        log = _signed_log(rows) - known.shift[1]
        parts = np.stack([raw, raw**2, raw**3, log, log**2], axis=1)
        sums = np.cumsum(np.concatenate([known.sums[None], parts]), axis=0)[1:]
        sizes = np.arange(known.size + 1, known.size + len(rows) + 1, dtype=np.float64)
        mean, deviation = known.figures(sums, sizes[:, None])
        done = _scaled(rows, known, mean, deviation)
        after = replace(known, size=known.size + len(rows), sums=sums[-1])
        if self.kind == "auto" and after.size in (*JUDGED_AT, self.freeze_at):
            after = replace(after, logged=np.abs(after.skewness()) > SKEWED)
        return done, after


def _begun(row: Floats, kind: FeatureScaling) -> Moments:
    """Return the statistics before the first row, with it as the origin of differences."""
    shift = np.stack([row, _signed_log(row)])
    logged = np.full(len(row), kind == "log")
    return Moments(0, shift, np.zeros((5, len(row))), logged)


def _signed_log(x: Floats) -> Floats:
    return np.asarray(np.sign(x) * np.log1p(np.abs(x)), dtype=np.float64)


def _rows_of(x: Tensor) -> Floats:
    return x.numpy().astype(np.float64)


def _scaled(rows: Floats, known: Moments, mean: Floats, deviation: Floats) -> Rows:
    taken = np.where(known.logged, _signed_log(rows) - known.shift[1], rows - known.shift[0])
    is_constant = known.is_constant(deviation)
    unit = np.where(is_constant, 1.0, deviation)
    found = np.where(is_constant, 0.0, (taken - mean) / unit)
    return np.clip(found, -MOST, MOST).astype(np.float32)


def _tensors(known: Moments | None) -> dict[str, Tensor]:
    if known is None:
        return {"size": torch.tensor(0)}
    return {
        "size": torch.tensor(known.size),
        "shift": torch.from_numpy(known.shift.copy()),
        "sums": torch.from_numpy(known.sums.copy()),
        "logged": torch.from_numpy(known.logged.copy()),
    }


def _moments(saved: Mapping[str, Tensor], freeze_at: int) -> Moments | None:
    if saved["size"].shape or saved["size"].dtype != torch.int64:
        raise ValueError("the size of a feature scale is one int64")
    size = int(saved["size"])
    if not size:
        return None
    shift, sums, logged = (saved[name].numpy().copy() for name in ("shift", "sums", "logged"))
    width = logged.shape[-1] if logged.ndim else 0
    shapes = (shift.shape, sums.shape, logged.shape) == ((2, width), (5, width), (width,))
    kinds = [array.dtype.name for array in (shift, sums, logged)] == ["float64", "float64", "bool"]
    if not (0 < size <= freeze_at and shapes and kinds):
        raise ValueError("the statistics of a feature scale are invalid")
    return Moments(size, shift, sums, logged)
