"""Checkpoints of a run at a URL: sent after they are on disk, and fetched by another machine.

Under the URL are `pieces/TOKEN/SHA256`, the content of files; `manifests/TOKEN-NUMBER.json`, each
with the files of one checkpoint and their pieces; `run.json`, which lists the kept manifests and is
written last; and `lease.json`, the writer. Each writer has a larger token than those before it, and
trusts only pieces that a manifest in `run.json` lists, or that it has sent itself. Single objects
must be read as they were last written; objects are never listed.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from tgflow.checkpoint.directory import MANIFEST, read_manifest
from tgflow.checkpoint.durable.errors import Locked
from tgflow.checkpoint.durable.fs import replace_file, sync_data
from tgflow.checkpoint.durable.lock import holder, holder_note, read_token, this_machine
from tgflow.checkpoint.durable.urls import open_url
from tgflow.checkpoint.names import CheckpointDamaged, UntrustedCheckpoint

FORMAT = 2
PIECE_BYTES = 8 << 20
"""Maximum size of a piece of a file that grows; other files are one piece."""
ONLY_GROW = {".log", ".rows", ".arrows"}
"""Endings of files whose written bytes do not change while a process runs; others are replaced."""
LONGEST_PAUSE = 30.0
"""Maximum seconds between two attempts of a request."""
START_SECONDS = 30.0
"""Seconds for which requests are repeated before a run starts."""
LOCK = ".lock"
"""Lock of a run directory."""
MARK = "store.json"
"""File in a run directory that names the run in the store."""
CHECKPOINTS = "checkpoints"
_ROOT, _LEASE = "run.json", "lease.json"

_Result = TypeVar("_Result")


class StoreUnavailable(OSError):
    """Raised when requests to the store have failed for longer than the timeout."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a file, stored under a key."""

    key: str
    num_bytes: int
    sha256: str


Files = dict[str, list[Piece]]
"""Files of a snapshot by path in the run directory, each in pieces."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in the store."""

    name: str
    """Name of its directory."""
    step: int
    state_sha256: str | None
    token: int
    """Token of the lock of its run directory."""
    key: str
    """Key of its manifest."""
    sha256: str
    """Digest of its manifest."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Figures of one upload."""

    name: str
    num_bytes: int
    """Bytes sent; pieces that were there are not sent again."""
    total_bytes: int
    seconds: float


class RemoteStore:
    """The checkpoints of one run at a URL. `acquire` comes before `fetch` and `save`.

    Args:
        url: Such as s3://bucket/run, gs://bucket/run or file:///folder.
        keep: Number of latest checkpoints kept, as in `CheckpointStore`.
        timeout: Seconds for which failed requests are repeated.
        lease: Seconds after which a writer that has not renewed its lease is replaced.
        warn: Called with a message about each failed request.

    Raises:
        ValueError: If the URL cannot be opened.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: int = 3,
        timeout: float = 600.0,
        lease: float = 30.0,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.url = url.partition("?")[0]
        self.run: str | None = None
        """Identity of the run in the store; None before its first checkpoint."""
        self._system, self._base = open_url(url)
        self._is_local = self._system.type_name == "local"
        self._keep, self._timeout, self._lease_seconds = keep, timeout, lease
        self.warn = warn
        self._retry_seconds = min(timeout, START_SECONDS)
        self._token, self._number, self._id = 0, 0, uuid.uuid4().hex
        self._sent_bytes = 0
        self._lease: dict[str, Any] = {}
        self._known: dict[str, Piece] = {}
        """Pieces that are in the store, by digest."""
        self._files: dict[str, Files] = {}
        """Files of the snapshots, by key."""
        self._snapshots: list[StoredCheckpoint] = []
        self._removed: list[StoredCheckpoint] = []
        """Snapshots that the newest `run.json` does not list, but the one before it does."""
        self._full_pieces: dict[Path, tuple[int, list[Piece]]] = {}
        """Inodes of files, and their full pieces."""
        self._lost: BaseException | None = None
        self._stop = threading.Event()
        self._renewing: threading.Thread | None = None

    @property
    def newest(self) -> StoredCheckpoint | None:
        """The newest checkpoint in the store."""
        return self._snapshots[-1] if self._snapshots else None

    # Writers

    def acquire(self, directory: Path) -> None:
        """Become the writer for a run directory that this process has locked.

        A writer that has not ended is waited for until its lease expires, unless it was an earlier
        process of this directory.

        Raises:
            Locked: If another process is the writer.
            StoreUnavailable: If the store cannot be reached.
            CheckpointDamaged: If `run.json` is damaged.
        """
        place, held = _place(directory), self._read_json(_LEASE)
        if held and held["open"] and held["place"] != place:
            self._wait_for(held)
        root = self._read_root()
        self._token = max(int((held or {}).get("token", 0)), int(root["token"])) + 1
        self._lease = holder_note(self._token, writer=self._id, place=place, renewals=0, open=True)
        self._write_json(_LEASE, self._lease)
        self._check_lease()
        self._load(root)
        self._retry_seconds = self._timeout
        self._renewing = threading.Thread(target=self._renew, name="store-lease", daemon=True)
        self._renewing.start()

    @property
    def _prefix(self) -> str:
        """The token in keys; a part of the identity tells two writers apart that start together."""
        return f"{self._token:06d}-{self._id[:8]}"

    def stop(self) -> None:
        """Repeat failed requests no longer."""
        self._stop.set()

    def release(self) -> None:
        """End the lease, so that another writer need not wait. Idempotent."""
        self.stop()
        if self._renewing is None:
            return
        self._renewing.join()
        self._renewing = None
        with suppress(OSError, Locked):
            self._check_lease(attempts=1)
            self._put(_LEASE, [json.dumps(self._lease | {"open": False}).encode()])

    def _wait_for(self, held: Mapping[str, Any]) -> None:
        until = time.monotonic() + self._lease_seconds
        while time.monotonic() < until:
            time.sleep(min(1.0, self._lease_seconds / 10))
            now = self._read_json(_LEASE)
            if now == held:
                continue
            if now is None or not now["open"]:
                return
            raise Locked(
                f"{self.url} is written by {holder(now)}; wait for it to end, stop it, or choose "
                "another --store"
            )

    def _renew(self) -> None:
        while not self._stop.wait(self._lease_seconds / 3):
            try:
                self._check_lease(attempts=1)
                self._lease["renewals"] += 1
                self._put(_LEASE, [json.dumps(self._lease).encode()])
            except Locked as error:
                self._lost = error
                return
            except OSError as error:  # repeated at the next renewal
                self.warn(f"the lease of {self.url} was not renewed: {_first_line(error)}")

    def _check_lease(self, attempts: int | None = None) -> None:
        """Raise `Locked` if another process is the writer now."""
        if self._lost is not None:
            raise self._lost
        held = self._read_json(_LEASE, attempts)
        if held is not None and held["writer"] != self._id and held["token"] >= self._token:
            raise Locked(
                f"{self.url} is now written by {holder(held)}, which has replaced this one; stop "
                "one of them, or choose another --store"
            )

    # Saving

    def save(self, directory: Path, checkpoint: Path, others: Iterable[str]) -> Sent:
        """Send a checkpoint on disk, and the files that it refers to; `run.json` is written last.

        Then the pieces of checkpoints that are no longer kept are removed, one save later.

        Args:
            directory: The run directory.
            checkpoint: Directory of the checkpoint in it, which must stay until this returns.
            others: Names of further files and folders in the run directory. They may grow.

        Raises:
            Locked: If another process is the writer now; its checkpoints are unchanged.
            StoreUnavailable: If requests have failed for longer than the timeout. What was the
                newest checkpoint still is.
            CheckpointDamaged: If the checkpoint on disk is damaged.
        """
        start, self._sent_bytes = time.perf_counter(), 0
        manifest, sizes = read_manifest(checkpoint), _sizes(directory, others)
        files: Files = {}
        for name, entry in manifest["files"].items():
            path = f"{CHECKPOINTS}/{checkpoint.name}/{name}"
            files[path] = [self._send_file(directory / path, entry["bytes"], entry["sha256"])]
        own = f"{CHECKPOINTS}/{checkpoint.name}/{MANIFEST}"
        files[own] = [self._send_bytes((directory / own).read_bytes())]
        for path, size in sizes.items():
            with suppress(FileNotFoundError):  # a segment of the log that is no longer needed
                files[path] = self._send_pieces(directory / path, size)
        self._number += 1
        key = f"manifests/{self._prefix}-{self._number}.json"
        data = json.dumps({path: [_packed(p) for p in parts] for path, parts in files.items()})
        self._retried(lambda: self._put(key, [data.encode()]), f"writing {key}")
        step = int(checkpoint.name.split("-")[1])
        digest = hashlib.sha256(data.encode()).hexdigest()
        state, token = manifest["state_sha256"], _lock_token(directory)
        self._files[key] = files
        self._commit(StoredCheckpoint(checkpoint.name, step, state, token, key, digest))
        total = sum(piece.num_bytes for parts in files.values() for piece in parts)
        seconds = time.perf_counter() - start
        return Sent(checkpoint.name, self._sent_bytes, total, seconds)

    def _commit(self, newest: StoredCheckpoint) -> None:
        before = [each for each in self._snapshots if each.step < newest.step]
        by_step = {each.step: each for each in [*before, newest]}
        kept = [*by_step.values()][-self._keep :]
        self.run = uuid.uuid4().hex if self.run is None else self.run
        self._write_root(kept)
        gone, self._removed = self._removed, [each for each in self._snapshots if each not in kept]
        self._snapshots = kept
        self._clean(gone)

    def keep_newest(self) -> None:
        """Remove all checkpoints but the newest, and the pieces that only they have, at once.

        Raises:
            OSError: If one cannot be removed.
        """
        gone = [*self._removed, *self._snapshots[:-1]]
        self._write_root(self._snapshots[-1:])
        self._snapshots, self._removed = self._snapshots[-1:], []
        self._clean(gone, must=True)

    def _write_root(self, kept: list[StoredCheckpoint]) -> None:
        root = {
            "format": FORMAT,
            "run": self.run,
            "token": self._token,
            "snapshots": [
                {name: getattr(each, name) for name in StoredCheckpoint.__slots__} for each in kept
            ],
        }
        self._check_lease()
        self._write_json(_ROOT, root)

    def _clean(self, gone: Iterable[StoredCheckpoint], *, must: bool = False) -> None:
        """Remove snapshots that neither the newest `run.json` nor the one before it lists.

        A writer that was replaced without noticing it may have written the one before it.
        """
        if not gone:
            return
        needed = {key for each in (*self._snapshots, *self._removed) for key in self._keys(each)}
        keys = {key for each in gone for key in self._keys(each)} - needed
        self._known = {sha: piece for sha, piece in self._known.items() if piece.key not in keys}
        for snapshot in gone:
            del self._files[snapshot.key]
        for key in sorted(keys):
            try:
                self._system.delete_file(f"{self._base}/{key}")
            except FileNotFoundError:
                continue
            except OSError as error:
                if must:
                    raise
                self.warn(f"{self.url}/{key} could not be removed: {_first_line(error)}")
                return

    def _keys(self, snapshot: StoredCheckpoint) -> set[str]:
        pieces = chain.from_iterable(self._files[snapshot.key].values())
        return {snapshot.key, *(piece.key for piece in pieces)}

    def _send_pieces(self, path: Path, size: int) -> list[Piece]:
        """Send the first `size` bytes of a file; full pieces of one that only grows are kept."""
        inode, pieces = path.stat().st_ino, []
        before, full = self._full_pieces.get(path, (inode, []))
        full = full if before == inode and path.suffix in ONLY_GROW else []
        with path.open("rb") as file:
            for index in range(-(-size // PIECE_BYTES)):
                if index < len(full):
                    pieces.append(full[index])
                    continue
                file.seek(index * PIECE_BYTES)
                data = file.read(min(PIECE_BYTES, size - index * PIECE_BYTES))
                pieces.append(self._send_bytes(data))
        whole = [piece for piece in pieces if piece.num_bytes == PIECE_BYTES]
        self._full_pieces[path] = inode, whole
        return pieces

    def _send_bytes(self, data: bytes) -> Piece:
        return self._send(hashlib.sha256(data).hexdigest(), len(data), lambda: [data])

    def _send_file(self, path: Path, num_bytes: int, sha256: str) -> Piece:
        return self._send(sha256, num_bytes, lambda: _chunks(path, sha256))

    def _send(self, sha256: str, num_bytes: int, chunks: Callable[[], Iterable[bytes]]) -> Piece:
        """Send content with this digest, unless it is there."""
        piece = self._known.get(sha256)
        if piece is None:
            piece = Piece(f"pieces/{self._prefix}/{sha256}", num_bytes, sha256)
            key = piece.key
            self._retried(lambda: self._put(key, chunks()), f"writing {key}")
            self._known[sha256] = piece
            self._sent_bytes += num_bytes
        return piece

    # Fetching

    def fetch(self, directory: Path, last: str) -> StoredCheckpoint | None:
        """Fetch the newest whole checkpoint to a directory; return None if the store has none.

        An interrupted fetch is repeated from its start.

        Args:
            directory: Empty, or of an interrupted fetch. Locked by this process.
            last: Name of the file that makes it a run directory, which is written last.

        Raises:
            FileExistsError: If the directory has other files.
            CheckpointDamaged: If no checkpoint in the store is whole.
            UntrustedCheckpoint: If a manifest names a file outside of the run directory.
            StoreUnavailable: If the store cannot be read.
        """
        mark = directory / MARK
        names = {path.name for path in directory.iterdir()} - {LOCK, "run.log"}
        if names and not (mark.exists() and "fetching" in json.loads(mark.read_text())):
            raise FileExistsError(
                f"{directory} has files, but is not the directory of a run; --resume --store "
                "fetches to an empty one"
            )
        problems = []
        for snapshot in reversed(self._snapshots):
            replace_file(mark, [json.dumps({"fetching": snapshot.name}).encode()])
            try:
                self._fetch(snapshot, directory, last)
            except CheckpointDamaged as error:
                problems.append(str(error))
                self.warn(f"{snapshot.name} in {self.url} is skipped: {error}")
                continue
            return snapshot
        if problems:
            raise CheckpointDamaged(f"{self.url} has no whole checkpoint: {problems[0]}")
        return None

    def _fetch(self, snapshot: StoredCheckpoint, directory: Path, last: str) -> None:
        files = self._files[snapshot.key]
        for name in sorted(files, key=lambda name: name == last):
            parts = PurePosixPath(name).parts
            if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
                raise UntrustedCheckpoint(f"{self.url} names a file {name!r:.80}")
            path = directory.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == last:
                self.mark(directory)
            partial = path.with_name(f".{path.name}.partial")
            with partial.open("wb") as file:
                for piece in files[name]:
                    self._get(piece.key, piece.sha256, file)
                file.flush()
                sync_data(file.fileno())
            partial.replace(path)

    def mark(self, directory: Path) -> None:
        """Record in a run directory which run of the store it is."""
        self.run = uuid.uuid4().hex if self.run is None else self.run
        replace_file(directory / MARK, [json.dumps({"run": self.run}).encode()])

    def marked(self, directory: Path) -> str | None:
        """Return the run of the store that a run directory belongs to, None if to none yet."""
        mark = directory / MARK
        found = json.loads(mark.read_text()).get("run") if mark.exists() else None
        return None if found is None else str(found)

    def _get(self, key: str, sha256: str, to: BinaryIO) -> None:
        """Append the content of an object to a file; raises CheckpointDamaged if it differs."""
        start = to.tell()

        def read() -> str:
            to.seek(start)
            to.truncate()
            digest = hashlib.sha256()
            with self._system.open_input_stream(f"{self._base}/{key}", compression=None) as source:
                while data := source.read(PIECE_BYTES):
                    digest.update(data)
                    to.write(data)
            return digest.hexdigest()

        try:
            found = self._retried(read, f"reading {key}")
            if found != sha256:  # a response may be damaged, and not the object
                found = self._retried(read, f"reading {key}")
        except FileNotFoundError:
            raise CheckpointDamaged(f"{self.url} has no {key}") from None
        if found != sha256:
            raise CheckpointDamaged(f"{self.url}/{key} is not what was written (SHA-256 differs)")

    def _read_manifest(self, snapshot: StoredCheckpoint) -> Files:
        content = io.BytesIO()
        self._get(snapshot.key, snapshot.sha256, content)
        found = json.loads(content.getvalue())
        return {path: [Piece(*each) for each in pieces] for path, pieces in found.items()}

    def _load(self, root: Mapping[str, Any]) -> None:
        self.run = root["run"]
        for snapshot in (StoredCheckpoint(**each) for each in root["snapshots"]):
            try:
                files = self._read_manifest(snapshot)
            except CheckpointDamaged as error:
                self.warn(f"{snapshot.name} in {self.url} is skipped: {error}")
                continue
            self._snapshots.append(snapshot)
            self._files[snapshot.key] = files
            pieces = chain.from_iterable(files.values())
            self._known |= {piece.sha256: piece for piece in pieces}

    def _read_root(self) -> dict[str, Any]:
        root = self._read_json(_ROOT)
        if root is None:
            return {"run": None, "token": 0, "snapshots": []}
        if root.get("format") != FORMAT:
            raise CheckpointDamaged(
                f"{self.url}/{_ROOT} has format {root.get('format')!r}, this tgflow reads {FORMAT}"
            )
        return root

    # Requests

    def _read_json(self, key: str, attempts: int | None = None) -> dict[str, Any] | None:
        def read() -> bytes:
            with self._system.open_input_file(f"{self._base}/{key}") as file:
                return bytes(file.read())

        for is_last in (False, False, False, True):
            try:
                data = read() if attempts == 1 else self._retried(read, f"reading {key}")
                found: dict[str, Any] = json.loads(data)
            except FileNotFoundError:
                return None
            except ValueError as error:
                if is_last:
                    raise CheckpointDamaged(f"{self.url}/{key} is damaged: {error}") from None
                self._stop.wait(0.1)  # replaced between the requests for its size and its content
            else:
                break
        return found

    def _write_json(self, key: str, value: Any) -> None:
        data = json.dumps(value, indent=1).encode()
        self._retried(lambda: self._put(key, [data]), f"writing {key}")

    def _put(self, key: str, chunks: Iterable[bytes]) -> None:
        """Write an object; readers see the old or the new content."""
        path = f"{self._base}/{key}"
        if not self._is_local:
            with self._system.open_output_stream(path, compression=None) as out:
                for chunk in chunks:
                    out.write(chunk)
            return
        self._system.create_dir(str(PurePosixPath(path).parent))
        partial = f"{path}.{self._id}-{threading.get_ident()}.partial"
        with self._system.open_output_stream(partial, compression=None) as out:
            for chunk in chunks:
                out.write(chunk)
        with open(partial, "rb") as written:
            sync_data(written.fileno())
        self._system.move(partial, path)

    def _retried(self, request: Callable[[], _Result], what: str) -> _Result:
        """Return the result of a request, repeated with growing pauses until the timeout."""
        until, pause = time.monotonic() + self._retry_seconds, 0.25
        while True:
            try:
                return request()
            except FileNotFoundError:
                raise
            except OSError as error:
                if time.monotonic() + pause > until or self._stop.is_set():
                    raise StoreUnavailable(
                        f"{self.url}: {what} failed for {self._retry_seconds:g} s: "
                        f"{_first_line(error)}; once the store is there again, resume the run"
                    ) from error
                self.warn(f"{self.url}: {what} failed, and is repeated: {_first_line(error)}")
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _place(directory: Path) -> str:
    """Return an identity of a directory on this machine since its start."""
    found = directory.stat()
    return f"{this_machine()}:{found.st_dev}:{found.st_ino}"


def _lock_token(directory: Path) -> int:
    """Return the token of the lock of a run directory, which its log and checkpoints have."""
    lock = directory / LOCK
    return read_token(json.loads(lock.read_bytes() or b"{}")) if lock.exists() else 0


def _sizes(directory: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the sizes of files, by path in `directory`, as if taken at one time.

    Newer segments of a log are measured before older ones, which they follow.
    """
    found: list[Path] = []
    for name in names:
        path = directory / name
        found += sorted(path.iterdir()) if path.is_dir() else [path]
    sizes = {}
    for path in reversed(found):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.name.startswith("."):
                sizes[path.relative_to(directory).as_posix()] = path.stat().st_size
    return sizes


def _chunks(path: Path, sha256: str) -> Iterator[bytes]:
    """Yield the content of a file; raises CheckpointDamaged at its end if its digest differs."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            digest.update(data)
            yield data
    if digest.hexdigest() != sha256:
        raise CheckpointDamaged(f"{path} is not what was written (SHA-256 differs)")


def _packed(piece: Piece) -> list[Any]:
    return [piece.key, piece.num_bytes, piece.sha256]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]
