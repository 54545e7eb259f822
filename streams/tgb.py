"""Convert TGB's link prediction files to portable formats: Parquet and safetensors."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from tgflow.checkpoint.durable.fs import replacing
from tgflow.graph.events import concat
from tgflow.streams.errors import StreamError
from tgflow.streams.files.csv import JodieDecoder
from tgflow.streams.files.formats import decoder_for
from tgflow.streams.files.pickled_arrays import Int64s, Key, read_pickled_arrays
from tgflow.streams.open import open_stream

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
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    time_unit: str = "s",
    sort: bool = False,
) -> Converted:
    """Write NAME.parquet, NAME.val.negatives.safetensors and NAME.test.negatives.safetensors.

    Node ids become TGB's integers: in JODIE's layout (wiki, subreddit, ...) destinations are
    numbered after the sources; in the others, whose columns are time, source, destination and more,
    nodes are numbered from 0 in order of appearance. RelBench's export of TGB has TGB's numbers,
    less the number of sources for destinations in a table of their own, and `weight` as the only
    feature. Only arrays of whole numbers are read from the pickles. Nothing is written on an error.

    Args:
        folder: Has NAME_edgelist*.csv, NAME_val_ns*.pkl and NAME_test_ns*.pkl, one of each; or
            manifest.yaml, db/events.parquet, a table of nodes or tables of sources and
            destinations beside it, negatives/val_ns.pkl and negatives/test_ns.pkl, as RelBench's.
        out: Output folder; created if missing.
        time_unit: Unit of the times, "s" for RelBench's export.
        sort: Whether to sort the events by time, ties in file order.

    Returns:
        The files written. The negatives are `start`, int64 `[n + 1]`, and `dst`, int64: those of
        the part's n-th event are `dst[start[n]:start[n + 1]]`.

    Raises:
        FileNotFoundError: If a file is missing.
        StreamError: If a file is invalid, or negatives belong to other events.
    """
    folder, target = Path(folder), Path(out)
    if (folder / "manifest.yaml").exists():
        name = _relbench_name(folder / "manifest.yaml")
        edges = _only(folder / "db", "events.parquet")
        pickles = {part: _only(folder / "negatives", f"{part}_ns*.pkl") for part in PARTS}
    else:
        edges = _only(folder, "*_edgelist*.csv")
        name = edges.name.partition("_edgelist")[0]
        pickles = {part: _only(folder, f"*_{part}_ns*.pkl") for part in PARTS}
    events, x = _read(edges, time_unit=time_unit, sort=sort)
    features = {} if x is None else {f"f{i}": x[:, i] for i in range(x.shape[1])}
    t = events["t"]
    negatives = {}
    ends = [int((t <= quantile).sum()) for quantile in np.quantile(t, SHARES)] + [len(t)]
    for part, rows in zip(PARTS, pairwise(ends), strict=True):
        known = read_pickled_arrays(pickles[part])
        found = [_of_event(pickles[part], known, events, row) for row in range(*rows)]
        start = np.cumsum([0, *map(len, found)], dtype=np.int64)
        dst = np.concatenate(found or [start[:0]])
        about = {
            "data_set": name,
            "kind": "tgbl/1",
            "part": part,
            "edges_sha256": _sha256(edges),
            "negatives_sha256": _sha256(pickles[part]),
        }
        path = target / f"{name}.{part}.negatives.safetensors"
        negatives[path] = {"start": start, "dst": dst}, about
    target.mkdir(parents=True, exist_ok=True)
    written = [target / f"{name}.parquet", *negatives]
    with ExitStack() as stack:  # renames all files at the end
        partial, *others = [stack.enter_context(replacing(path)) for path in written]
        pq.write_table(pa.table(events | features), partial, compression="zstd")
        for other, (arrays, about) in zip(others, negatives.values(), strict=True):
            save_file(arrays, other, about)
    sizes = (len(arrays["dst"]) for arrays, _ in negatives.values())
    return Converted(tuple(written), len(t), dict(zip(PARTS, sizes, strict=True)))


def _relbench_name(manifest: Path) -> str:
    found = re.search(r"""^name:\s*["']?([\w.-]+)""", manifest.read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise StreamError(str(manifest), "schema", "it has no line `name: ...`")
    return found[1]


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) == 1:
        return found[0]
    what = "no" if not found else f"{len(found)} files"
    raise FileNotFoundError(f"there is {what} {pattern} in {str(folder)!r}; one is required")


def _read(path: Path, **options: Any) -> tuple[dict[str, Int64s], npt.NDArray[np.float32] | None]:
    """Return src, dst and t of all events with TGB's node numbers, and the features."""
    decoder = decoder_for(path)
    is_jodie, is_relbench = isinstance(decoder, JodieDecoder), path.suffix == ".parquet"
    if is_jodie:
        stream = open_stream(path, format="jodie", **options)
    elif is_relbench:
        stream = open_stream(
            path, src="src_id", dst="dst_id", t="event_ts", features=["weight"], **options
        )  # fmt: skip
    else:
        names = decoder.names() or ()
        if len(names) < 3:
            text = f"a list of events has columns of time, source and destination, got {names}"
            raise StreamError(str(path), "schema", text)
        weight = [name for name in names[3:4] if name in ("weight", "w")]
        stream = open_stream(
            path, src=names[1], dst=names[2], t=names[0], id_kind="string", features=weight,
            **options,
        )  # fmt: skip
    batches = list(stream)
    if not batches:
        raise StreamError(str(path), "schema", "there is no event")
    batch = concat(batches)
    events = {name: getattr(batch, name).numpy() for name in ("src", "dst", "t")}
    if is_jodie or is_relbench:
        for name in ("src", "dst"):
            events[name] = np.array(stream.ids.decode(getattr(batch, name)), dtype=np.int64)
    if is_jodie:
        events["dst"] += events["src"].max() + 1
    elif is_relbench and not (path.parent / "nodes.parquet").exists():
        events["dst"] += pq.read_metadata(_only(path.parent, "src_nodes.parquet")).num_rows
    return events, None if batch.x is None else batch.x.numpy()


def _of_event(
    path: Path, known: Mapping[Key, Int64s], events: Mapping[str, Int64s], row: int
) -> Int64s:
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
