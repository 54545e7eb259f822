"""TGB's files for link prediction as files that anybody reads: Parquet, and safetensors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

from tgflow.durable.fs import replacing
from tgflow.streams.errors import StreamError
from tgflow.streams.files.csv import JodieDecoder
from tgflow.streams.files.formats import decoder_for
from tgflow.streams.files.pickled_arrays import Array, Key, read_pickled_arrays
from tgflow.streams.open import open_stream

Int64s = npt.NDArray[np.int64]

PARTS = ("val", "test")
_COLUMNS = ("src", "dst", "t")
SHARES = (0.70, 0.85)
"""Quantiles of the times at which validation and the test begin."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    files: tuple[Path, ...]
    """The events, then the negatives of validation and of the test."""
    num_events: int
    num_negatives: dict[str, int]
    """By part."""


@dataclass(frozen=True, slots=True)
class _Events:
    src: Int64s
    dst: Int64s
    t: Int64s
    x: npt.NDArray[np.float32] | None


def convert_tgb(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, time_unit: str = "s"
) -> Converted:
    """Write NAME.parquet, NAME.val.negatives.safetensors and NAME.test.negatives.safetensors.

    Node ids become TGB's integers: of lists in JODIE's form (wiki, subreddit, ...) the destinations
    follow the sources; of others, whose columns are time, source, destination and more, nodes are
    numbered from 0 on in the order in which they appear. Of the
    pickles only integer arrays are read.

    Args:
        folder: Has NAME_edgelist*.csv, NAME_val_ns*.pkl and NAME_test_ns*.pkl, one of each.
        out: The folder to write to; it is made.
        time_unit: Unit of the times.

    Returns:
        What was written. The negatives are `start`, int64 `[n + 1]`, and `dst`, int64: those of the
        part's n-th event are `dst[start[n]:start[n + 1]]`.

    Raises:
        FileNotFoundError: If a file is not there.
        StreamError: If one is not what it should be, or negatives are of other events.
    """
    folder = Path(folder)
    edges = _only(folder, "*_edgelist*.csv")
    name = edges.name.partition("_edgelist")[0]
    pickles = {part: _only(folder, f"*_{part}_ns*.pkl") for part in PARTS}
    events = _read(edges, time_unit)
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    written = [_write_events(target / f"{name}.parquet", events)]
    counts = {}
    for part, rows in zip(PARTS, _parts(events.t), strict=True):
        start, dst = _negatives(pickles[part], events, rows)
        path = target / f"{name}.{part}.negatives.safetensors"
        about = {
            "data_set": name,
            "kind": "tgb/1",
            "part": part,
            "edges_sha256": _sha256(edges),
            "negatives_sha256": _sha256(pickles[part]),
        }
        with replacing(path) as partial:
            save_file({"start": start, "dst": dst}, partial, about)
        written.append(path)
        counts[part] = len(dst)
    return Converted(tuple(written), len(events.t), counts)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) == 1:
        return found[0]
    what = "no" if not found else f"{len(found)} files"
    raise FileNotFoundError(f"there is {what} {pattern} in {str(folder)!r}; one is needed")


def _read(path: Path, time_unit: str) -> _Events:
    """Return all events in the order of the file, their nodes as TGB numbers them."""
    decoder = decoder_for(path, None)
    if isinstance(decoder, JodieDecoder):
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
    src, dst, t = (torch.cat([getattr(batch, name) for batch in batches]) for name in _COLUMNS)
    features = [batch.x for batch in batches if batch.x is not None]
    x = torch.cat(features).numpy() if features else None
    if not isinstance(decoder, JodieDecoder):
        return _Events(src.numpy(), dst.numpy(), t.numpy(), x)
    users, items = (np.array(stream.ids.decode(nodes), dtype=np.int64) for nodes in (src, dst))
    return _Events(users, items + users.max() + 1, t.numpy(), x)


def _write_events(path: Path, events: _Events) -> Path:
    columns = {name: pa.array(getattr(events, name)) for name in _COLUMNS}
    if events.x is not None:
        columns |= {f"f{i}": pa.array(events.x[:, i]) for i in range(events.x.shape[1])}
    with replacing(path) as partial:
        pq.write_table(pa.table(columns), partial, compression="zstd")
    return path


def _parts(t: Int64s) -> Iterator[range]:
    """Yield the rows of validation and of the test: after the quantiles of the times."""
    ends = [int((t <= quantile).sum()) for quantile in np.quantile(t, SHARES)] + [len(t)]
    return (range(begin, end) for begin, end in pairwise(ends))


def _negatives(path: Path, events: _Events, rows: range) -> tuple[Int64s, Int64s]:
    """Return where the negatives of each event start, and the negatives one after the other."""
    known = read_pickled_arrays(path)
    found = [_of_event(path, known, events, row) for row in rows]
    start = np.zeros(len(found) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in found], out=start[1:])
    return start, np.concatenate([each.astype(np.int64) for each in found] or [start[:0]])


def _of_event(path: Path, known: Mapping[Key, Array], events: _Events, row: int) -> Array:
    key = int(events.src[row]), int(events.dst[row]), int(events.t[row])
    if key in known:
        return known[key]
    src, dst, t = key
    raise StreamError(
        str(path),
        "schema",
        f"it has no negatives of event {row}, {src} -> {dst} at {t}; are negatives and events of "
        "one version of the data set, and is --time-unit that of the file?",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
