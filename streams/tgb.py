"""Convert TGB's link prediction files to portable formats: Parquet and safetensors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from tgflow.durable.fs import replacing
from tgflow.events import concat
from tgflow.streams.errors import StreamError
from tgflow.streams.files.csv import JodieDecoder
from tgflow.streams.files.formats import decoder_for
from tgflow.streams.files.pickled_arrays import Array, Key, read_pickled_arrays
from tgflow.streams.open import open_stream

Int64s = npt.NDArray[np.int64]

PARTS = ("val", "test")
SHARES = (0.70, 0.85)
"""Quantiles of the times at which validation and test begin."""


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of a conversion."""

    files: tuple[Path, ...]
    """The events, then the negatives of validation and of the test."""
    num_events: int
    num_negatives: dict[str, int]
    """Number of events, by part."""


def convert_tgb(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, time_unit: str = "s"
) -> Converted:
    """Write NAME.parquet, NAME.val.negatives.safetensors and NAME.test.negatives.safetensors.

    Node ids become TGB's integers: in JODIE's layout (wiki, subreddit, ...) destinations are
    numbered after the sources; in the others, whose columns are time, source, destination and more,
    nodes are numbered from 0 in order of appearance. Only integer arrays are read from the pickles.

    Args:
        folder: Has NAME_edgelist*.csv, NAME_val_ns*.pkl and NAME_test_ns*.pkl, one of each.
        out: Output folder; created if missing.
        time_unit: Unit of the times.

    Returns:
        The files written. The negatives are `start`, int64 `[n + 1]`, and `dst`, int64: those of
        the part's n-th event are `dst[start[n]:start[n + 1]]`.

    Raises:
        FileNotFoundError: If a file is missing.
        StreamError: If a file is invalid, or negatives belong to other events.
    """
    folder = Path(folder)
    edges = _only(folder, "*_edgelist*.csv")
    name = edges.name.partition("_edgelist")[0]
    pickles = {part: _only(folder, f"*_{part}_ns*.pkl") for part in PARTS}
    events, x = _read(edges, time_unit)
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    written, counts = [target / f"{name}.parquet"], {}
    features = {} if x is None else {f"f{i}": x[:, i] for i in range(x.shape[1])}
    with replacing(written[0]) as partial:
        pq.write_table(pa.table(events | features), partial, compression="zstd")
    t = events["t"]
    ends = [int((t <= quantile).sum()) for quantile in np.quantile(t, SHARES)] + [len(t)]
    for part, rows in zip(PARTS, pairwise(ends), strict=True):
        known = read_pickled_arrays(pickles[part])
        found = [_of_event(pickles[part], known, events, row) for row in range(*rows)]
        start = np.cumsum([0, *map(len, found)], dtype=np.int64)
        dst = np.concatenate([each.astype(np.int64) for each in found] or [start[:0]])
        about = {
            "data_set": name,
            "kind": "tgb/1",
            "part": part,
            "edges_sha256": _sha256(edges),
            "negatives_sha256": _sha256(pickles[part]),
        }
        written.append(target / f"{name}.{part}.negatives.safetensors")
        with replacing(written[-1]) as partial:
            save_file({"start": start, "dst": dst}, partial, about)
        counts[part] = len(dst)
    return Converted(tuple(written), len(t), counts)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) == 1:
        return found[0]
    what = "no" if not found else f"{len(found)} files"
    raise FileNotFoundError(f"there is {what} {pattern} in {str(folder)!r}; one is required")


def _read(path: Path, time_unit: str) -> tuple[dict[str, Int64s], npt.NDArray[np.float32] | None]:
    """Return src, dst and t of all events with TGB's node numbers, and the features."""
    decoder = decoder_for(path)
    is_jodie = isinstance(decoder, JodieDecoder)
    if is_jodie:
        stream = open_stream(path, format="jodie", time_unit=time_unit)
    else:
        names = decoder.names() or ()
        if len(names) < 3:
            text = f"a list of events has columns of time, source and destination, got {names}"
            raise StreamError(str(path), "schema", text)
        weight = [name for name in names[3:4] if name in ("weight", "w")]
        stream = open_stream(
            path, src=names[1], dst=names[2], t=names[0], time_unit=time_unit, id_kind="string",
            features=weight,
        )  # fmt: skip
    batches = list(stream)
    if not batches:
        raise StreamError(str(path), "schema", "there is no event")
    batch = concat(batches)
    events = {name: getattr(batch, name).numpy() for name in ("src", "dst", "t")}
    if is_jodie:
        for name in ("src", "dst"):
            events[name] = np.array(stream.ids.decode(getattr(batch, name)), dtype=np.int64)
        events["dst"] += events["src"].max() + 1
    return events, None if batch.x is None else batch.x.numpy()


def _of_event(
    path: Path, known: Mapping[Key, Array], events: Mapping[str, Int64s], row: int
) -> Array:
    src, dst, t = (int(events[name][row]) for name in ("src", "dst", "t"))
    if (src, dst, t) in known:
        return known[src, dst, t]
    raise StreamError(
        str(path),
        "schema",
        f"it has no negatives of event {row}, {src} -> {dst} at {t}; are negatives and events of "
        "one version of the data set, and is --time-unit that of the file?",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
