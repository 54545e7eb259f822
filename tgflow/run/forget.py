"""Erasure of nodes from all that a run keeps (`tgflow forget`).

A request is a file in the folder `forget` of a run. It is carried out while no process has the run
open: new versions of all files that name the nodes are staged beside the old ones, then a journal
lists the renames and removals, and these are done. Before the journal is on disk nothing has
changed; once it is, whatever opens the run next does the rest.

Events of the nodes keep their place in the log, as positions are in all that a run keeps: each
becomes an event of one erased node with itself, of its time, without features and label.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from tgflow.base.peers import PARTS
from tgflow.base.text import printable
from tgflow.checkpoint import Checkpoint, CheckpointStore, Tensors, list_checkpoints, read_manifest
from tgflow.checkpoint import directory as directories
from tgflow.checkpoint.checkpoint import OF_PART
from tgflow.checkpoint.durable.errors import LogCorrupt
from tgflow.checkpoint.durable.fs import RealFs, make_directories
from tgflow.checkpoint.durable.lock import RunLock
from tgflow.checkpoint.durable.log import LogPosition, rewrite
from tgflow.checkpoint.names import UntrustedCheckpoint, checkpoint_name
from tgflow.checkpoint.sections import Ids
from tgflow.checkpoint.typed import read_as
from tgflow.graph.events import NO_LABEL
from tgflow.graph.id_columns import canonical
from tgflow.graph.ids import ERASED, ERASED_NUMBER, NodeIds
from tgflow.graph.tables import FeatureTable
from tgflow.nn import NodeMemory
from tgflow.nn.history import NODE
from tgflow.nn.memory import HISTORY, MAIL_T, NODES
from tgflow.run.config import Config, ConfigError
from tgflow.run.directory import LOCK, SETTINGS
from tgflow.run.features import edge_file
from tgflow.run.ingestion import FILE, LABEL_IDS
from tgflow.run.model_maker import make_model
from tgflow.run.records import DEAD_LETTERS, KEY, DamagedJson, checksum, read_checked
from tgflow.run.saved import saved_config
from tgflow.run.scores import ROWS, ROWS_OF_DAYS, score_files
from tgflow.streams.ingest.late_labels import PIECE
from tgflow.streams.transports import scheme_of
from tgflow.streams.write import write_rows
from tgflow.train.trainer_state import file_of, load_rows, save_rows

FOLDER = "forget"
REQUESTS, STAGED, JOURNAL, DONE = "request-*.json", "staged", "journal.json", "done.json"
_MASK, _NOTHING = "[erased]", re.compile("(?!)")
_PIECE_OF = re.compile(r"(.+)-(\d+)-(\d{6})")
_NOT_TEXT = {"checkpoints", "log", DEAD_LETTERS, FOLDER, LOCK, "tensorboard", SETTINGS}


def requested(path: Path) -> bool:
    return any((path / FOLDER).glob(REQUESTS)) or (path / FOLDER / JOURNAL).exists()


def request(path: Path, nodes: Sequence[str], fs: RealFs | None = None) -> Path:
    """Write a request to forget nodes durably; return its file, which goes once it is carried out.

    Raises `ConfigError` if it is no directory of `tgflow run`, or an id cannot be one of its
    stream.
    """
    fs = RealFs() if fs is None else fs
    if not (path / SETTINGS).exists():
        raise ConfigError(f"{path} is no run: it has no {SETTINGS}; give a directory of tgflow run")
    entries = list_checkpoints(path / "checkpoints")
    meta = read_manifest(entries[-1].path)["meta"] if entries else {}
    if meta.get("trainer", "continual") != "continual" or (path / "checkpoint").exists():
        text = f"{path} is of tgflow train or compare, which keep no ids of their own to go on "
        raise ConfigError(f"{text}with: remove it, and train again from data without the nodes")
    wrong = [node for node in nodes if not node or canonical(node) is None]
    if wrong and "keys" in meta.get("ids", {}).get("columns", {}):
        raise ConfigError(f"--node: {wrong[0]!r} is no id of {path}, whose ids are integers")
    make_directories(fs, path / FOLDER)
    file = path / FOLDER / f"request-{uuid.uuid4().hex}.json"
    _write(fs, file, [json.dumps({"nodes": [*nodes]}).encode()], replaces=True)
    fs.sync_directory(file.parent)
    return file


def carry_out(path: Path, say: Callable[[str], None], fs: RealFs | None = None) -> bool:
    """Forget the nodes of all requests, and finish what a crash has interrupted; False without any.

    Raises CheckpointError if no checkpoint can be read, Locked if a process has the run open, and
    LogCorrupt: nothing has changed then. After an OSError the next call does the rest.
    """
    if not requested(path):
        return False
    fs, folder = RealFs() if fs is None else fs, path / FOLDER
    with RunLock(path / LOCK, say=say) as lock:
        while requested(path):  # others may come meanwhile
            if not (folder / JOURNAL).exists():
                shutil.rmtree(folder / STAGED, ignore_errors=True)
                fs.make_directory(folder / STAGED)
                _Erasure(path, fs, lock).prepare()
            _finish(path, json.loads((folder / JOURNAL).read_bytes()), fs)
    return True


def _finish(path: Path, journal: Mapping[str, Any], fs: RealFs) -> None:
    folder, touched = path / FOLDER, set[Path]()
    for staged, target in ((path / a, path / b) for a, b in journal["moves"]):
        if staged.exists():
            if target.is_dir():
                fs.remove_directory(target)
            fs.rename(staged, target)
        touched |= {target.parent}
    for gone in (path / each for each in journal["gone"]):
        if gone.exists():
            (fs.remove_directory if gone.is_dir() else fs.unlink)(gone)
        touched |= {gone.parent}
    for each in sorted(touched):
        fs.sync_directory(each)
    figures = journal["figures"]
    done = json.dumps({**figures, KEY: checksum(figures)}).encode()
    _write(fs, folder / DONE, [done], replaces=True)
    for name in (*journal["requests"], JOURNAL):
        if (folder / name).exists():
            fs.unlink(folder / name)
    fs.sync_directory(folder)
    shutil.rmtree(folder / STAGED, ignore_errors=True)


def erased(path: Path) -> dict[str, Any] | None:
    """Return how many nodes of a run were forgotten so far, and when the last; None without any.

    Raises `LogCorrupt` if its file is damaged.
    """
    file = path / FOLDER / DONE
    if not file.exists():
        return None
    try:
        nodes = read_as(int, read_checked(file.read_bytes()).get("erased"), "erased")
    except (DamagedJson, UntrustedCheckpoint) as error:
        text = "remove it, which loses the number of nodes forgotten so far alone"
        raise LogCorrupt(f"{file} is damaged: {error}; {text}") from None
    return {"nodes": nodes, "at": file.stat().st_mtime}


def unreachable(path: Path) -> list[str]:
    """Return what a run may have sent or learned of its nodes, and cannot take back, in words."""
    c = _config(path)
    found = [f"the stream, {c.stream.path}, and the files of features and labels beside it"]
    if c.scores.to and scheme_of(c.scores.to):
        found.append(f"scores published to {c.scores.to}")
    if c.start.init_from is not None:
        found.append(f"the run that it began with: tgflow forget {c.start.init_from}")
    return [
        *found,
        "what was learned: parameters, optimizer, figures, and the memory of other nodes",
        "copies of the run and its files elsewhere, and files of scores named before",
    ]


def _config(path: Path, checkpoint: Path | None = None) -> Config:
    meta = {} if checkpoint is None else read_manifest(checkpoint)["meta"]
    return saved_config(path, Checkpoint({}, meta))


def _write(
    fs: RealFs, file: Path, parts: Iterable[bytes], *, replaces: bool = False
) -> dict[str, int]:
    """Create a file, synced; one left by a crash is removed before. Return size and checksum."""
    target, file = file, file.with_name(f".{file.name}.partial") if replaces else file
    if file.exists():
        fs.unlink(file)
    fd, size, crc, left = fs.create(file), 0, 0, iter(parts)
    while part := b"".join(islice(left, 1000)):
        fs.write(fd, part)
        size, crc = size + len(part), zlib.crc32(part, crc)
    fs.sync(fd)
    fs.close(fd)
    if replaces:
        fs.rename(file, target)
    return {"num_bytes": size, "crc32": crc}


class _Erasure:
    """Stages files without the nodes of all requests, and writes the journal."""

    def __init__(self, path: Path, fs: RealFs, lock: RunLock) -> None:
        self._path, self._fs, self._lock = path, fs, lock
        self._staged = path / FOLDER / STAGED
        self._requests = sorted((path / FOLDER).glob(REQUESTS))
        asked = (json.loads(each.read_bytes())["nodes"] for each in self._requests)
        self._names: list[str] = sorted({name for nodes in asked for name in nodes})
        numbers = map(canonical, self._names)
        self._numbers = pa.array([each for each in numbers if each is not None], pa.int64())
        self._pattern = _pattern(self._names)
        self._free = _pattern([name for name in self._names if canonical(name) is None])
        self._moves: list[tuple[Path, Path]] = []
        self._gone: list[Path] = []
        self._nodes = self._positions = torch.empty(0, dtype=torch.int64)
        """Dense ids of the nodes, and log positions of their events, in the newest checkpoint."""
        self._partners = set[tuple[int, int]]()
        """The other nodes of these events, with their ticks."""
        self._ends = 0, 0
        """Dense ids in place of their ends."""
        self._marks: dict[Path, dict[str, int]] = {}
        """New lengths of the rows of scores that the checkpoint counts."""
        self._letters: dict[int, dict[int, tuple[int, int]]] = {}
        """By file of dead letters: byte and checksum in the new one by byte in the old one."""

    def prepare(self) -> None:
        newest = CheckpointStore(self._path / "checkpoints", lock=self._lock).newest()
        self._dead_letters()
        moved: Callable[[LogPosition], LogPosition] = lambda position: position  # noqa: E731
        if (log := self._path / "log").is_dir():
            self._fs.make_directory(self._staged / "log")
            moved = rewrite(self._fs, log, self._staged / "log", self._frame)
            self._moves.append((self._staged / "log", log))
        self._config = _config(self._path, None if newest is None else newest[1].path)
        self._scores({} if newest is None else newest[1].meta.get("score_rows") or {})
        if newest is not None:
            self._checkpoint(*newest, moved)
        self._texts()
        for folder in sorted({self._staged, *(staged.parent for staged, _ in self._moves)}):
            self._fs.sync_directory(folder)
        known, events, done = len(self._nodes), len(self._positions), erased(self._path)
        figures = {"nodes": len(self._names), "known": known, "events": events}
        journal = {
            "moves": [[self._name(each) for each in move] for move in self._moves],
            "gone": [self._name(each) for each in self._gone],
            "requests": [each.name for each in self._requests],
            "figures": figures | {"erased": known + (0 if done is None else done["nodes"])},
        }
        file = self._path / FOLDER / JOURNAL
        _write(self._fs, file, [json.dumps(journal).encode()], replaces=True)
        self._fs.sync_directory(file.parent)

    def _stage(self, target: Path, parts: Iterable[bytes]) -> dict[str, int]:
        self._moves.append((self._place(target), target))
        return _write(self._fs, self._moves[-1][0], parts)

    def _place(self, target: Path) -> Path:
        """Return where the new version of a file is staged: on the same disk."""
        if Path(self._name(target)).is_absolute():
            return target.with_name(f".forget-{target.name}")
        return self._staged / f"{len(self._moves)}-{target.name}"

    def _name(self, path: Path) -> str:
        """Return a path from the run's directory, which may be moved, or an absolute one."""
        path, home = path.absolute(), self._path.absolute()
        return str(path.relative_to(home) if path.is_relative_to(home) else path)

    # Rows

    def _is_theirs(self, column: Any) -> Any:
        of = self._numbers if pa.types.is_integer(column.type) else pa.array(self._names)
        return pc.is_in(column, value_set=of.cast(column.type))

    def _rows(self, batch: Any, *, blank: bool) -> Any:
        """Return rows of events, those of the nodes with ends of the erased node, or none."""
        mask = pc.or_(self._is_theirs(batch["src"]), self._is_theirs(batch["dst"]))
        if not pc.any(mask).as_py():
            return batch
        is_theirs = mask.to_numpy(zero_copy_only=False)
        columns = {name: batch[name] for name in batch.schema.names}
        for name, column in columns.items():
            if name in ("src", "dst", "event_id"):
                number = pa.types.is_integer(column.type)
                erased = pa.scalar(ERASED_NUMBER if number else ERASED, column.type)
                columns[name] = pc.if_else(mask, erased, column)  # Arrow keeps what nulls hide
                if not blank or name == "event_id":
                    columns[name] = pc.if_else(mask, pa.scalar(None, column.type), columns[name])
            elif blank and name == "x":
                values = column.flatten().to_numpy().reshape(len(column), -1).copy()
                values[is_theirs] = 0
                columns[name] = pa.FixedSizeListArray.from_arrays(
                    pa.array(values.reshape(-1)), values.shape[1]
                )
            elif blank and name in _BLANK:
                columns[name] = pc.if_else(mask, pa.scalar(_BLANK[name], column.type), column)
        return type(batch).from_pydict(columns, batch.schema)

    def _frame(
        self, rows: pa.RecordBatch, footer: dict[str, Any]
    ) -> tuple[pa.RecordBatch, dict[str, Any]]:
        footer = self._masked(footer) | {"letters": self._length(footer.get("letters"))}
        if footer.get("kind") == "labels" or not len(rows):
            return rows, footer
        return self._rows(rows, blank=True), footer

    def _masked(self, value: Any, elsewhere: re.Pattern[str] = _NOTHING) -> Any:
        """Return JSON whose texts about rejected rows are masked, and others by a pattern."""
        if isinstance(value, dict):
            masks = {"refused": self._pattern}
            return {k: self._masked(v, masks.get(k, elsewhere)) for k, v in value.items()}
        if isinstance(value, list):
            return [self._masked(each, elsewhere) for each in value]
        return elsewhere.sub(_MASK, value) if isinstance(value, str) else value

    # Files beside the checkpoints

    def _dead_letters(self) -> None:
        for path in sorted((self._path / DEAD_LETTERS).glob("*.jsonl")):
            lines, ends, byte, size, crc = [], {0: (0, 0)}, 0, 0, 0
            for line in path.read_bytes().splitlines(keepends=True):
                byte, new = byte + len(line), line
                with suppress(ValueError):
                    letter = json.loads(line)
                    raw = base64.b64decode(letter["raw"]).decode(errors="replace")
                    if self._pattern.search(raw) or self._pattern.search(letter["message"]):
                        letter |= {"message": _MASK, "raw": "", "sha256": ""}
                        new = f"{json.dumps(letter)}\n".encode()
                lines.append(new)
                size, crc = size + len(new), zlib.crc32(new, crc)
                ends[byte] = size, crc
            self._letters[int(path.stem)] = ends
            if any(new != old for new, old in zip(lines, path.open("rb"), strict=True)):
                self._stage(path, lines)

    def _length(self, length: Any) -> Any:
        """Return the length of the dead letters for one of the old files."""
        if not length:
            return length
        last, byte, crcs = length["segment"], length["byte"], [*length["crc32"]]
        for number, ends in self._letters.items():
            if number < last:
                crcs[number] = ends[max(ends)][1]
            elif number == last and byte in ends:
                byte, crcs[number] = ends[byte]
        return {"segment": last, "byte": byte, "crc32": crcs}

    def _scores(self, noted: Mapping[str, Any]) -> None:
        """Remove the ids from all files of scores, those that a checkpoint counts up to there."""
        own, mark = noted.get("to"), noted.get("mark", {"day": None})
        rows = {path.stem: path for path in (self._path / ROWS_OF_DAYS).glob("*.arrows")}
        if (path := self._path / ROWS).exists():
            rows[""] = path
        files = [(own, day, path) for day, path in rows.items()]
        for to in {self._config.scores.to, own}:
            if to is not None and not scheme_of(to):
                files += [(to, day, path) for day, path in score_files(to).items()]
        for to, day, path in files:
            if path.suffix == ".parquet":
                self._moves.append((self._place(path), path))
                with pq.ParquetFile(path) as file:
                    batches = (self._rows(each, blank=False) for each in file.iter_batches())
                    write_rows(self._moves[-1][0], batches, file.schema_arrow)
                continue
            size = mark["num_bytes"] if (to, day) == (own, mark["day"]) else path.stat().st_size
            make = self._arrow_rows if path.suffix == ".arrows" else self._text_rows
            self._marks[path.absolute()] = self._stage(path, make(path, size))

    def _arrow_rows(self, path: Path, size: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            stream = pa.ipc.open_stream(file)
            yield stream.schema.serialize().to_pybytes()
            while file.tell() < size:
                yield self._rows(stream.read_next_batch(), blank=False).serialize().to_pybytes()

    def _text_rows(self, path: Path, size: int) -> Iterator[bytes]:
        """Yield the first bytes of a text file of scores, without ids in rows of the nodes."""
        names, is_json, record, header = {*self._names}, path.suffix == ".jsonl", "", list[str]()
        delimiter = "\t" if path.suffix == ".tsv" else ","
        with path.open("rb") as file:
            for line in file:
                if file.tell() > size:
                    return
                record += line.decode()
                if not is_json and record.count('"') % 2:  # a quoted id goes on in the next line
                    continue
                fields = [] if is_json else next(csv.reader([record], delimiter=delimiter))
                header = header or fields
                row = json.loads(record) if is_json else dict(zip(header, fields, strict=True))
                if not names.isdisjoint({str(row["src"]), str(row["dst"])}):
                    row |= {name: None for name in ("src", "dst", "event_id") if name in row}
                    sink = io.StringIO()
                    csv.writer(sink, delimiter=delimiter, lineterminator="\n").writerow(
                        row.values()
                    )
                    record = f"{json.dumps(row)}\n" if is_json else sink.getvalue()
                yield record.encode()
                record = ""

    def _texts(self) -> None:
        """Mask ids in all other texts: numbers only where they quote rejected rows."""
        own = {target.absolute() for _, target in self._moves}
        files = [each for each in self._path.iterdir() if each.name not in _NOT_TEXT]
        for path in [*files, *(self._path / "ranks").rglob("*")]:
            if not path.is_file() or path.absolute() in own or path.suffix in (".rows", ".arrows"):
                continue
            with suppress(UnicodeDecodeError):
                text = path.read_bytes().decode()
                if (new := self._text(text)) != text:
                    self._stage(path, [new.encode()])
                    if path.name == FILE and (page := self._path / "report.html").exists():
                        self._gone.append(page)  # it quotes the same rows; written at the end

    def _text(self, text: str) -> str:
        """Return JSON, or lines of it, masked, with a new checksum; other text as far as free."""
        if not self._pattern.search(text):
            return text
        try:
            value = json.loads(text)
        except ValueError:
            lines = [*io.StringIO(text, newline="\n")]
            return "".join(map(self._text, lines)) if lines[1:] else self._free.sub(_MASK, text)
        new = self._masked(value, self._free)
        if new == value:
            return text
        with suppress(DamagedJson):
            new = {k: v for k, v in new.items() if k != KEY} if read_checked(text) else new
            new[KEY] = checksum(new)
        compact = None if '": ' in text else (",", ":")
        indent = 1 if text.startswith("{\n") else None
        return json.dumps(new, indent=indent, separators=compact) + "\n" * text.endswith("\n")

    # The checkpoint

    def _checkpoint(
        self, step: int, old: Checkpoint, moved: Callable[[LogPosition], LogPosition]
    ) -> None:
        entries = list_checkpoints(self._path / "checkpoints")
        ids = NodeIds()
        if "ids" in old.meta:
            Ids(ids).load(old)
        self._find(old, ids)
        new = Checkpoint({}, dict(old.meta), volatile=set(old.volatile))
        if "ids" in old.meta:
            Ids(ids).save(new)
        for name in ("edge_x", "node_x"):
            if name in old.meta:
                self._features(old, new, name, len(ids))
        dim = self._memory_dim(old)
        for name in {**old.sections, **old.sealed, **old.later}:
            if name.partition("_")[0] == "ids" or re.match("(edge|node)_x(-|_mark|$)", name):
                continue
            make = partial(self._section, old, name, dim)
            kind = new.sealed if name in old.sealed else new.later
            kind[name] = make
        meta = new.meta
        if "ingest" in meta:
            ingest = self._masked(meta["ingest"])
            ingest["letters"] = self._length(ingest["letters"])
            if ingest["log"] is not None:
                ingest["log"] = moved(LogPosition.from_json(ingest["log"])).to_json()
            meta["ingest"] = ingest
        if (noted := meta.get("score_rows")) and not scheme_of(noted["to"]):
            mark, to = noted["mark"], Path(noted["to"].replace("{day}", noted["mark"]["day"]))
            of_day = self._path / ROWS_OF_DAYS / f"{mark['day']}.arrows"
            rows = of_day if mark["day"] else self._path / ROWS
            file = (rows if to.suffix == ".parquet" else to).absolute()
            meta["score_rows"] = noted | {"mark": mark | self._marks.get(file, {})}
        attempt = max((each.attempt for each in entries if each.step == step), default=-1) + 1
        target = self._path / "checkpoints" / checkpoint_name(step, attempt)
        token: dict[str, Any] = {"token": self._lock.token} if self._lock.token else {}
        staged = self._staged / target.name
        with directories.prepared(self._fs, staged, new, **token) as temporary:
            self._fs.rename(temporary, staged)
        self._moves.append((staged, target))
        self._gone += [each for each in target.parent.iterdir() if each != target]

    def _find(self, old: Checkpoint, ids: NodeIds) -> None:
        kind = old.meta.get("ids", {}).get("columns", {})
        names: Any = self._numbers if "keys" in kind else pa.array(self._names)
        dense = torch.cat([ids.find(names, side) for side in ("src", "dst")])
        self._nodes = torch.unique(dense[dense >= 0])
        is_theirs = torch.zeros(len(ids), dtype=torch.bool)
        is_theirs[self._nodes] = True
        positions = []
        for name in self._pieces(old, "events"):
            piece, start = old.get(name), self._start(old, name)
            mask = is_theirs[piece["src"]] | is_theirs[piece["dst"]]
            rows = mask.nonzero().flatten()
            positions.append(start + rows)
            for end in ("src", "dst"):
                pairs = zip(piece[end][rows].tolist(), piece["t"][rows].tolist(), strict=True)
                self._partners |= {*pairs}
        self._positions = torch.cat(positions) if positions else self._positions
        self._ends = ids.erase(self._nodes) or (0, 0)

    def _pieces(self, old: Checkpoint, base: str) -> list[str]:
        """Return the sections of the chunks of `base` in order."""
        names = filter(None, map(_PIECE_OF.fullmatch, old.sealed))
        found = sorted((int(name[3]), name[0]) for name in names if name[1] == base)
        return [*(name for _, name in found), *([base] if base in old.sections else [])]

    def _start(self, old: Checkpoint, name: str) -> int:
        """Return the first position of a chunk, or of the rest behind the chunks."""
        if piece := _PIECE_OF.fullmatch(name):
            return int(piece[2]) * int(piece[3])
        meta = old.meta
        if name == "events":
            size, stop = meta["piece"], meta["position"]
        elif name == LABEL_IDS:
            size, stop = PIECE, meta[LABEL_IDS]
        else:
            size, stop = meta[name]["size"], meta[name]["stop"]
        return int(stop // size * size)

    def _section(self, old: Checkpoint, name: str, dim: int | None) -> Tensors:
        """Return a section without what is of the nodes or their events."""
        piece = dict(old.get(name))
        base = match[1] if (match := _PIECE_OF.fullmatch(name)) else name
        if base == "events" or base in (LABEL_IDS, "label_inputs", "label_predictions"):
            size = len(next(iter(piece.values()), ()))
            start = self._start(old, name)
            bounds = torch.searchsorted(self._positions, torch.tensor([start, start + size]))
            rows = self._positions[slice(*bounds.tolist())] - start
            if len(rows):
                for key, column in piece.items():
                    if base != "events" or key in _BLANK:
                        piece[key] = column.index_fill(0, rows, _BLANK.get(key, 0))
                if base == "events":
                    for key, node in zip(("src", "dst"), self._ends, strict=True):
                        piece[key] = piece[key].index_fill(0, rows, node)
                    if "label" in piece and bool((piece["label"] == NO_LABEL).all()):
                        del piece["label"]  # as of events without labels
        elif base == "late_labels":
            is_theirs = torch.isin(piece["eid"], self._positions)
            piece["label"] = piece["label"].masked_fill(is_theirs, NO_LABEL)
        elif name == "alerts":
            is_other = ~torch.isin(piece["position"], self._positions)
            piece |= {key: piece[key][is_other] for key in ("position", "probability")}
        elif name == "reorder":
            self._buffered(piece)
        elif name == "reuse":
            for number in {key.partition(".")[0] for key in piece}:
                kept = ~torch.isin(piece[f"{number}.nodes"], self._nodes)
                for key in ("rows", "number", "nodes", "t", "slot"):
                    piece[f"{number}.{key}"] = piece[f"{number}.{key}"][kept]
        elif "rows" in piece and "clock" in piece:
            self._memory(piece, int(name[-2:]) if OF_PART.fullmatch(name) else None, dim)
        return piece

    def _buffered(self, piece: Tensors) -> None:
        if "rows" in piece:
            with pa.ipc.open_stream(pa.py_buffer(piece["rows"].numpy())) as reader:
                batch = self._rows(reader.read_next_batch(), blank=True)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            piece["rows"] = torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)
        if "labels" in piece:
            labels = piece["labels"].clone()
            labels[3, torch.isin(labels[1], self._positions)] = NO_LABEL
            piece["labels"] = labels

    def _memory(self, piece: Tensors, part: int | None, dim: int | None) -> None:
        """Make the nodes' rows initial ones, and their partners' mail of their events zeros."""
        step, first = (1, 0) if part is None else (PARTS, part)
        nodes = piece.get(NODES, torch.arange(len(piece["clock"])) * step + first)
        is_theirs = torch.isin(nodes, self._nodes)
        if NODES in piece:
            nodes = nodes[~is_theirs]
            piece |= {key: piece[key][~is_theirs] for key in (NODES, "rows", "clock")}
        else:
            mask = is_theirs.unsqueeze(1)
            piece |= {key: piece[key].masked_fill(mask, 0) for key in ("rows", "clock")}
        if (origin := piece.get(f"{HISTORY}origin")) is not None:
            kept = ~torch.isin(origin[:, NODE], self._nodes)
            piece |= {
                key: x[kept]
                for key, x in piece.items()
                if key.startswith(HISTORY) and key != f"{HISTORY}events"
            }
            nodes = torch.cat([nodes, piece[f"{HISTORY}origin"][:, NODE]])
        if dim is None:
            return
        partners = torch.tensor(sorted({node for node, _ in self._partners}), dtype=torch.int64)
        size = len(piece["clock"])
        for at in torch.isin(nodes, partners).nonzero().flatten().tolist():
            prefix, row = ("", at) if at < size else (HISTORY, at - size)
            if (int(nodes[at]), int(piece[f"{prefix}clock"][row, MAIL_T])) in self._partners:
                piece[f"{prefix}rows"][row, dim:] = 0

    def _memory_dim(self, old: Checkpoint) -> int | None:
        c = self._config
        edge, node = ((old.meta.get(name) or {}).get("dim", 0) for name in ("edge_x", "node_x"))
        with suppress(ConfigError):  # of a class that is not tgflow's
            model = make_model(c.model, c.task, c.continual, edge, node_x_dim=node)
            return model.state.dim if isinstance(model.state, NodeMemory) else None
        return None

    def _features(self, old: Checkpoint, new: Checkpoint, name: str, num_ids: int) -> None:
        meta, file = old.meta, file_of(old.meta, name)
        dim, size = meta[name]["dim"], int(old.get(f"{name}_mark")["rows"])
        source = FeatureTable(dim, placement="host" if file is None else "disk", path=file)
        load_rows(old, name, source, follows_log=False)
        table, step = FeatureTable(dim, placement="host"), max(1, (16 << 20) // (4 * dim))
        if file is not None:
            staged = self._place(file)
            staged.unlink(missing_ok=True)
            table = FeatureTable(dim, placement="disk", path=staged)
        is_edge = name == "edge_x"
        first, own = (meta["first"], self._positions) if is_edge else (0, self._nodes)
        table.forget(first)
        for start in range(first, size, step):
            x = source.read(start, min(start + step, size)).clone()
            is_theirs = torch.isin(torch.arange(start, start + len(x)), own)
            table.append(x.masked_fill(is_theirs.unsqueeze(1), 0))
        if not is_edge and size == meta["ids"]["num"] and num_ids > size:
            table.append(torch.zeros(num_ids - size, dim))
        is_volatile = f"{name}_mark" in old.volatile
        save_rows(new, name, table, len(table), volatile=is_volatile, first=first)
        if file is not None:
            table.sync()
            new.outside.clear()
            new.meta[name] = new.meta[name] | {"file": str(file)}
            self._moves.append((staged, file))
            c = self._config
            of_0 = edge_file(c.placement, c.tables.edge_path, self._path)
            if of_0 is not None:  # others copy the rows of rank 0
                self._gone += sorted(of_0.parent.glob(f"{of_0.stem}-[0-9][0-9][0-9]{of_0.suffix}"))
            source.close()
            table.close()


_BLANK = {"label": NO_LABEL, "weight": 0, "relation": 0}
"""Values of optional columns of an event in place of an erased one's."""


def _pattern(names: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of whole ids, as they are and as files escape them."""
    forms = {
        form
        for name in names
        for form in (name, json.dumps(name)[1:-1], html.escape(name), printable(name))
    }
    found = "|".join(sorted(map(re.escape, forms), key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{found})(?!\w)") if found else _NOTHING
