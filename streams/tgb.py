"""Convert data sets of TGB and TGB-Seq to portable formats: Parquet and safetensors."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from tgflow.checkpoint.durable.fs import replacing, sha256_of
from tgflow.graph.events import concat
from tgflow.graph.ids import NodeIds
from tgflow.streams.errors import StreamError
from tgflow.streams.files.csv import JodieDecoder
from tgflow.streams.files.decoder import Decoder
from tgflow.streams.files.dyglib import DyglibDecoder
from tgflow.streams.files.formats import decoder_for, read_table
from tgflow.streams.files.pickled_arrays import Int64s, Key, read_pickled_arrays
from tgflow.streams.open import open_stream

PARTS = ("val", "test")
ABOUT = b"tgflow.data_set"
"""Key of the description of a data set in the metadata of its Parquet file, as JSON."""
_log = logging.getLogger("tgflow.streams")
_BY_COLUMN = ["u", "i", "ts", "label", "idx"]
_NUMERIC = ("weight", "w", "num_words", "score", "value", "IsSender")
"""Columns after time, source and destination that are features."""
_CAUSE = (
    "are negatives and events of one version of the data set, and is --time-unit that of the file?"
)


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of a conversion."""

    files: tuple[Path, ...]
    """The events, then further tables, then the negatives of validation and of the test."""
    num_events: int
    num_negatives: dict[str, int]
    """Number of negatives, by part; empty if events are ranked among all destinations."""
    about: dict[str, str]
    """Name, protocol, split, licence and digests of the files, as in the files' metadata."""


@dataclass(slots=True, eq=False)
class _Data:
    """A data set that was read."""

    name: str
    protocol: str
    events: dict[str, Int64s]
    """Columns src, dst, t and perhaps relation."""
    x: npt.NDArray[np.float32] | None
    files: list[Path]
    ids: NodeIds | None = None
    version: str = ""
    """Of the files, such as "-v2", as boards name it."""
    relations: Sequence[str] = ()
    """Texts of the relations 0, 1, ...; none if they are numbers."""
    held: float = 0.15
    """Share of the times of validation, and of the test."""
    starts: tuple[int, int] = (0, 0)
    """Number of events before validation, and before the test."""
    directions: int = 1
    """2 if each event is followed by its inverse."""
    negatives: dict[str, Sequence[Int64s]] = field(default_factory=dict)
    """Negatives of each event, and of its inverse after it, by part."""
    tables: dict[str, pa.Table] = field(default_factory=dict)


def convert_tgb(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    time_unit: str = "s",
    sort: bool = False,
) -> Converted:
    """Write NAME.parquet, and what else there is of a data set of TGB: `tgbl`, `thgl`, ....

    Negatives become NAME.val.negatives.safetensors and NAME.test.negatives.safetensors. Node ids
    become integers, TGB's where there are negatives: in JODIE's layout (wiki, subreddit, ...) and
    that of `u,i,ts,label,idx`, also after an index without a name, destinations are numbered after
    the sources; in the others, whose columns are time, source, destination and more, nodes are
    numbered from 0 in order of appearance. RelBench's export of TGB has TGB's numbers, less the
    number of sources for destinations in a table of their own, and `weight` as the only feature.
    Types of edges (`relation_type`) become the column `relation`, texts in order of appearance.
    Only arrays of whole numbers are read from the pickles. Nothing is written on an error.

    Knowledge graphs (`tkgl`) with the time-aware filter list the other true destinations: these are
    checked against the events, and no file is written, as `tkgl/1` ranks among all others itself.

    Args:
        folder: Has NAME_edgelist*.csv, NAME_val_ns*.pkl and NAME_test_ns*.pkl, one of each, of
            `thgl` NAME_nodetype*.csv (NAME.types.parquet), of some of `tkgl`
            NAME_static_edgelist*.csv (NAME.static.parquet), and of `tgbn` NAME_node_labels*.csv
            (NAME.labels.parquet) and no negatives; or manifest.yaml, db/events.parquet, a table of
            nodes or tables of sources and destinations beside it, negatives/val_ns.pkl and
            negatives/test_ns.pkl, as RelBench's.
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
    folder = Path(folder)
    if is_relbench := (folder / "manifest.yaml").exists():
        name, version = _relbench_name(folder / "manifest.yaml"), ""
        edges = _only(folder / "db", "events.parquet")
        pickles = {part: _only(folder / "negatives", f"{part}_ns*.pkl") for part in PARTS}
    else:
        edges = _only(folder, "*_edgelist*.csv", but="_static_edgelist")
        name, _, version = edges.stem.partition("_edgelist")
        is_nodes = name.startswith("tgbn-")  # has labels instead
        pickles = {} if is_nodes else {part: _only(folder, f"*_{part}_ns*.pkl") for part in PARTS}
    kind = name[:4] if name[:5] in ("thgl-", "tkgl-", "tgbn-") else "tgbl"
    data = _read(edges, kind, time_unit=time_unit, sort=sort)
    data.name, data.directions = name, 1 + (kind == "tkgl")
    data.version = version.replace("_", "-")
    data.files += pickles.values()
    data.held = held = 0.1 if "yago" in name else 0.15
    t = np.repeat(data.events["t"], data.directions)
    quantiles = np.quantile(t, [1 - held - held, 1 - held])
    first, second = (int((data.events["t"] <= quantile).sum()) for quantile in quantiles)
    data.starts = first, second
    if pickles:
        _add_negatives(data, pickles)
    if kind == "thgl" and not is_relbench:
        names, kinds, *_ = _columns_of(data, _only(folder, "*_nodetype*.csv"))
        known = (nodes := _nodes(data, names)) >= 0
        data.tables["types"] = pa.table({"id": nodes[known], "type": np.array(kinds)[known]})
    elif kind == "tkgl":
        for path in sorted(folder.glob("*_static_edgelist*.csv"))[:1]:
            _add_static(data, path)
    elif kind == "tgbn":
        _add_labels(data, _only(folder, "*_node_labels*.csv"))
    return _write(data, folder, Path(out))


def convert_tgbseq(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, sort: bool = False
) -> Converted:
    """Write NAME.parquet, NAME.test.negatives.safetensors and perhaps NAME.nodes.parquet.

    Validation has no published negatives; `tgbseq/1` draws them.

    Args:
        folder: Has NAME.csv with src, dst, time and split (0 training, 1 validation, 2 test),
            NAME_test_ns.npy, and perhaps NAME_edge_feat.npy and NAME_node_feat.npy.
        out: Output folder; created if missing.
        sort: Whether to sort the events by time, ties in file order.

    Returns:
        The files written, as of `convert_tgb`.

    Raises:
        FileNotFoundError: If a file is missing.
        StreamError: If a file is invalid, or the parts do not follow each other.
    """
    folder = Path(folder)
    path, given = _only(folder, "*.csv"), _only(folder, "*_test_ns*.npy")
    table = read_table(path)[1]
    for column in ("src", "dst", "time", "split"):
        if column not in table.column_names:
            names = ", ".join(table.column_names)
            raise StreamError(str(path), "schema", f"there is no column {column}, only {names}")
    src, dst, t, split = (_whole(path, table[name]) for name in ("src", "dst", "time", "split"))
    order = np.lexsort((split, t)) if sort else np.arange(len(t))
    if (np.diff(t[order]) < 0).any():
        raise StreamError(str(path), "order", "times must not decrease; give --sort")
    if (np.diff(split[order]) < 0).any() or set(split.tolist()) != {0, 1, 2}:
        text = "split must be 0, then 1, then 2 in order of time"
        raise StreamError(str(path), "schema", text)
    first, second = np.searchsorted(split[order], [1, 2]).tolist()
    negatives = _load(given)
    if negatives.ndim != 2 or negatives.dtype.kind not in "iu" or len(negatives) != len(t) - second:
        text = f"expected whole numbers [{len(t) - second}, k], got {negatives.dtype} "
        raise StreamError(str(given), "schema", f"{text}{list(negatives.shape)}")
    place = np.cumsum(split == 2) - 1  # row of a test event in the file
    name, _, version = given.stem.partition("_test_ns")
    events = {"src": src[order], "dst": dst[order], "t": t[order]}
    found = [*negatives.astype(np.int64)[place[order[second:]]]]
    data = _Data(name, "tgbseq/1", events, None, [path, given], starts=(first, second))
    data.version = version.replace("_", "-")
    data.negatives["test"] = found
    for what in ("edge", "node"):
        for feat in sorted(folder.glob(f"*_{what}_feat*.npy"))[:1]:
            x = _load(feat).astype(np.float32, copy=False)
            data.files.append(feat)
            if x.ndim != 2 or (what == "edge" and len(x) != len(t)):
                text = f"expected features of {what}s [{len(t) if what == 'edge' else 'n'}, d], got"
                raise StreamError(str(feat), "schema", f"{text} {list(x.shape)}")
            if what == "edge":
                data.x = x[order]
            else:
                data.tables["nodes"] = pa.table({"id": np.arange(len(x))} | _columns(x))
    return _write(data, folder, Path(out))


def read_about(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the description of a converted data set in its Parquet file, {} of other files."""
    if Path(path).suffix != ".parquet" or not Path(path).is_file():  # such as a folder, or a URL
        return {}
    found = (pq.read_schema(path).metadata or {}).get(ABOUT)
    return {} if found is None else json.loads(found)


def _write(data: _Data, folder: Path, target: Path) -> Converted:
    num_events = len(data.events["t"])
    first, second = (data.directions * start for start in data.starts)
    about = {
        "data_set": data.name,
        "board": data.name + data.version,
        "protocol": data.protocol,
        "val_start": str(first),
        "test_start": str(second),
        "num_events": str(data.directions * num_events),
        "held": str(data.held),
        "negatives": ",".join(data.negatives),
        "licence": _licence(folder),
        "sha256": json.dumps({path.name: sha256_of(path) for path in data.files}),
    }
    table = pa.table(data.events | ({} if data.x is None else _columns(data.x)))
    tables = {"": table.replace_schema_metadata({ABOUT: json.dumps(about)})}
    tables |= {f".{name}": each for name, each in data.tables.items()}
    arrays = {}
    for part, found in data.negatives.items():
        start = np.cumsum([0, *map(len, found)], dtype=np.int64)
        arrays[part] = {"start": start, "dst": np.concatenate([start[:0], *found])}
    paths = [target / f"{data.name}{suffix}.parquet" for suffix in tables]
    paths += [target / f"{data.name}.{part}.negatives.safetensors" for part in arrays]
    target.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:  # renames all files at the end
        partial = [stack.enter_context(replacing(path)) for path in paths]
        for path, each in zip(partial, tables.values(), strict=False):
            pq.write_table(each, path, compression="zstd")
        for path, (part, each) in zip(partial[len(tables) :], arrays.items(), strict=True):
            save_file(each, path, about | {"part": part})
    sizes = {part: len(each["dst"]) for part, each in arrays.items()}
    return Converted(tuple(paths), num_events, sizes, about)


def _columns(x: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
    return {f"f{i}": np.ascontiguousarray(x[:, i]) for i in range(x.shape[1])}


def _relbench_name(manifest: Path) -> str:
    found = re.search(r"""^name:\s*["']?([\w.-]+)""", manifest.read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise StreamError(str(manifest), "schema", "it has no line `name: ...`")
    return found[1]


def _licence(folder: Path) -> str:
    """Return the licence that a manifest or the first line of a LICENSE file in it states."""
    if (manifest := folder / "manifest.yaml").exists():
        text = manifest.read_text("utf-8")
        if found := re.search(r"""^licen[sc]e:\s*["']?([^"'\n]+)""", text, re.MULTILINE):
            return found[1].strip()
    for path in sorted(folder.glob("LICEN[SC]E*")):
        return path.read_text("utf-8").strip().partition("\n")[0]
    return "not stated in its folder"


def _only(folder: Path, pattern: str, but: str = " ") -> Path:
    found = sorted(path for path in folder.glob(pattern) if but not in path.name)
    if len(found) == 1:
        return found[0]
    what = "no" if not found else f"{len(found)} files"
    raise FileNotFoundError(f"there is {what} {pattern} in {str(folder)!r}; one is required")


def _read(path: Path, kind: str, **options: Any) -> _Data:
    """Return all events, with TGB's node numbers."""
    decoder, names = _named(path)
    is_jodie, is_relbench = isinstance(decoder, JodieDecoder), path.suffix == ".parquet"
    has_index = isinstance(decoder, DyglibDecoder)
    is_after = is_jodie or has_index or names == _BY_COLUMN
    if has_index:
        _log.warning("%s: its first column, an index without a name, is not read", path)
        stream = open_stream(path, src="src", dst="dst", t="t", id_kind="int", **options)
    elif is_jodie:
        stream = open_stream(path, format="jodie", **options)
    elif is_relbench:
        stream = open_stream(
            path, src="src_id", dst="dst_id", t="event_ts", features=["weight"], **options
        )  # fmt: skip
    elif is_after:
        stream = open_stream(path, src="u", dst="i", t="ts", id_kind="int", **options)
    else:
        typed = kind in ("thgl", "tkgl")
        if len(names) < 3 + typed:
            text = "a list of events has columns of time, source and destination"
            text += f"{' and relation' * typed}, got {tuple(names)}"
            raise StreamError(str(path), "schema", text)
        stream = open_stream(
            path, src=names[1], dst=names[2], t=names[0], id_kind="string",
            features=[name for name in names[3:] if name in _NUMERIC],
            relation=names[3] if typed else None,
            bipartite=kind == "tgbn" and names[1] != "nation", **options,
        )  # fmt: skip
    if not (batches := list(stream)):
        raise StreamError(str(path), "schema", "there is no event")
    batch = concat(batches)
    events = {name: getattr(batch, name).numpy() for name in ("src", "dst", "t")}
    if is_after or is_relbench:
        for name in ("src", "dst"):
            events[name] = np.array(stream.ids.decode(getattr(batch, name)), dtype=np.int64)
    if is_after:
        events["dst"] += events["src"].max() + 1
    elif is_relbench and not (path.parent / "nodes.parquet").exists():
        events["dst"] += pq.read_metadata(_only(path.parent, "src_nodes.parquet")).num_rows
    if batch.relation is not None:
        events["relation"] = batch.relation.numpy()
    x = None if batch.x is None else batch.x.numpy()
    relations = stream.classes.get("relation", ())
    return _Data("", f"{kind}/1", events, x, [path], stream.ids, relations=relations)


def _add_negatives(data: _Data, pickles: Mapping[str, Path]) -> None:
    """Find the negatives of each event, and of its inverse in a knowledge graph."""
    events, begin = data.events, data.starts[0]
    src, dst, t = (events[name][begin:] for name in ("src", "dst", "t"))
    columns = [src, dst, t]
    if "relation" in events:
        relation = events["relation"][begin:]
        columns = [t, src, relation]
    if is_graph := data.directions == 2:
        inverse = relation + len(np.unique(events["relation"]))
        both = [(t, t), (src, dst), (relation, inverse), (dst, src)]
        *columns, dst = (np.stack(pair, axis=1).ravel() for pair in both)
    keys: list[Key] = [*zip(*(column.tolist() for column in columns), strict=True)]
    truth: dict[Key, set[int]] = {}  # destinations of each key
    for key, own in zip(keys, dst.tolist(), strict=True):
        truth.setdefault(key, set()).add(own)
    second = data.directions * (data.starts[1] - begin)
    keys_of = dict(zip(PARTS, (keys[:second], keys[second:]), strict=True))
    for part, path in pickles.items():
        known = read_pickled_arrays(path)
        for i, key in enumerate(keys_of[part]):
            if key not in known:
                row = (i + second * (part == "test")) // data.directions
                ends = (events[name][begin + row] for name in ("src", "dst", "t"))
                text = "it has no negatives of event {}, {} -> {} at {}; ".format(
                    begin + row, *ends
                )
                raise StreamError(str(path), "schema", text + _CAUSE)
        data.negatives[part] = [known[key] for key in keys_of[part]]
    found = [(part, key) for part in PARTS for key in keys_of[part]]
    given = [each for part in PARTS for each in data.negatives[part]]
    if not is_graph or not all(map(np.isin, dst, given)):
        return
    for (part, key), each in zip(found, given, strict=True):
        if set(each.tolist()) != truth[key]:
            text = f"it excludes {each.tolist()!s:.60} for (t, src, relation) = {key}, where the "
            text += f"events have {sorted(truth[key])!s:.60}; {_CAUSE}"
            raise StreamError(str(pickles[part]), "schema", text)
    data.negatives = {}


def _named(path: Path) -> tuple[Decoder, list[str]]:
    """Return the decoder of a file, and the names of its columns, which are read by their order."""
    decoder = decoder_for(path)
    names = list(decoder.names() or ())
    if names and names[0].strip() in ("", "Unnamed: 0"):
        text = f"its first column has no name, before {', '.join(names[1:5])}: if it is an index "
        raise StreamError(str(path), "schema", f"{text}of pandas, write the file with index=False")
    return decoder, names


def _columns_of(data: _Data, path: Path) -> list[list[str]]:
    """Return the columns of a CSV file as texts."""
    names = _named(path)[1]
    table = read_table(path, names)[1]
    data.files.append(path)
    return [table[name].to_pylist() for name in names]


def _nodes(data: _Data, column: list[str]) -> Int64s:
    """Return the nodes of a column, -1 if they have no event."""
    assert data.ids is not None
    nodes: Int64s = data.ids.find(column).numpy()
    return nodes


def _add_static(data: _Data, path: Path) -> None:
    """Add edges without a time; their nodes and relations may be new, and get the next numbers."""
    heads, tails, kinds, *_ = _columns_of(data, path)
    assert data.ids is not None
    ends = [each.numpy() for each in data.ids.encode(heads, tails)]
    known = {text: i for i, text in enumerate([*dict.fromkeys([*data.relations, *kinds])])}
    columns = dict(zip(("src", "dst"), ends, strict=True))
    data.tables["static"] = pa.table(columns | {"relation": [known[kind] for kind in kinds]})


def _add_labels(data: _Data, path: Path) -> None:
    t, names, labels, weight, *_ = _columns_of(data, path)
    known = (nodes := _nodes(data, names)) >= 0
    texts = {"t": t, "label": labels, "weight": weight}
    columns = {name: pa.array(each).filter(pa.array(known)) for name, each in texts.items()}
    columns["t"] = pa.array(_whole(path, columns["t"]))
    columns["weight"] = columns["weight"].cast(pa.float64())
    data.tables["labels"] = pa.table(columns | {"node": nodes[known]})


def _whole(path: Path, column: Any) -> Int64s:
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not (np.isfinite(values) & (np.trunc(values) == values) & (np.abs(values) < 2**53)).all():
        raise StreamError(str(path), "schema", "times and numbers of nodes must be whole numbers")
    whole: Int64s = values.astype(np.int64)
    return whole


def _load(path: Path) -> npt.NDArray[Any]:
    try:
        found: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise StreamError(str(path), "syntax", f"it is no array: {error!s:.100}") from None
    return found
