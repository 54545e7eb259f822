"""Checkpoints of a run at a URL (`--store`): uploads beside the learning, and the fetch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tgflow.base.units import parse_seconds
from tgflow.checkpoint import CheckpointStore, Component, read_manifest
from tgflow.checkpoint.durable.lock import RunLock
from tgflow.checkpoint.remote import RemoteStore, Sent
from tgflow.run.config import ConfigError
from tgflow.run.config.schema import RunConfig, StoreConfig
from tgflow.run.directory import LOCK, SETTINGS
from tgflow.run.features import EDGE_ROWS
from tgflow.run.ingestion import DEAD_LETTERS, FILE
from tgflow.run.log import RunLog
from tgflow.run.micro_batch_ends import ENDS_FILE
from tgflow.run.records import LEARNED_FILES, RunFiles
from tgflow.run.scores import OWNER, ROWS, ROWS_OF_DAYS
from tgflow.train.observe import Callback, StepRecord

FILES = (
    *(
        SETTINGS,
        "metrics.jsonl",
        "metrics.csv",
        "metrics.csv.1",
        "log",
        DEAD_LETTERS,
        FILE,
        ENDS_FILE,
    ),
    *(LEARNED_FILES, OWNER, ROWS, ROWS_OF_DAYS, EDGE_ROWS),
)
"""Files and folders of a run directory that are stored besides its checkpoints."""


def open_remote(c: StoreConfig, keep: int, warn: Callable[[str], None]) -> RemoteStore:
    """Open the configured store; ConfigError if its URL cannot be opened."""
    assert c.url is not None
    try:
        return RemoteStore(
            c.url,
            keep=keep,
            timeout=parse_seconds(c.timeout),
            lease=parse_seconds(c.lease),
            warn=warn,
        )
    except ValueError as error:
        raise ConfigError(f"--store: {error}") from None


def fetch_run(c: StoreConfig, keep: int, run: RunConfig, warn: Callable[[str], None]) -> None:
    """Fetch the newest whole checkpoint in the store, if any, if `run.out` holds no run yet."""
    if c.url is None or run.out is None or (Path(run.out) / SETTINGS).exists():
        return
    remote, directory = open_remote(c, keep, warn), Path(run.out)
    RunFiles(directory, resumed=True).make(run)
    with RunLock(directory / LOCK, say=warn) as lock:
        try:
            remote.acquire(directory)
            found = remote.fetch(directory, SETTINGS)
            if found is not None:  # log and checkpoints go on with the token that they have
                lock.token = max(lock.token, found.token)
        except FileExistsError as error:
            raise ConfigError(str(error)) from None
        finally:
            remote.release()
    if found is not None:
        warn(f"fetched {found.name} from {remote.url} to {directory}")


class Uploads(Component, Callback):
    """Sends each checkpoint to the store, in a background thread; a late one is skipped.

    Raises:
        ConfigError: If the store holds another run, or is ahead of the directory.
        Locked: If another process writes to the store.
        StoreUnavailable: If the store cannot be reached.
    """

    def __init__(
        self, remote: RemoteStore, path: Path, store: CheckpointStore, run_log: RunLog
    ) -> None:
        self._remote, self._path, self._store, self._run_log = remote, path, store, run_log
        self._changed = threading.Condition()
        self._pending: Path | None = None
        self._current: Path | None = None
        self._is_closing = False
        self._error: BaseException | None = None
        self._num, self._num_bytes = 0, 0
        self._thread = threading.Thread(target=self._run, name="store-upload", daemon=True)
        try:
            self._remote.acquire(self._path)
            is_behind = self._check_run()
        except BaseException:
            self._remote.release()
            raise
        self._thread.start()
        if is_behind:
            self.saved()

    def _check_run(self) -> bool:
        """Check that directory and store are of one run; return whether the store is behind."""
        remote, entries = self._remote, self._store.entries()
        newest, own = remote.newest, remote.marked(self._path)
        if newest is None:
            remote.run = own
            remote.mark(self._path)
            return bool(entries)
        if own != remote.run:
            raise ConfigError(
                f"--store: {remote.url} holds another run; resume that one with --resume and an "
                "empty --out, or give another URL"
            )
        step = entries[-1].step if entries else -1
        same = entries and read_manifest(entries[-1].path)["state_sha256"] == newest.state_sha256
        if step < newest.step or (step == newest.step and not same):
            raise ConfigError(
                f"--store: {remote.url} is ahead, with {newest.name}, as another process has gone "
                f"on from there; move {self._path} away, and --resume fetches that one"
            )
        return step > newest.step

    def on_step(self, record: StepRecord) -> None:
        """Raise the error that has ended the uploads."""
        self._raise()

    def saved(self) -> None:
        with self._changed:
            self._pending = self._store.entries()[-1].path
            self._pin()
            self._changed.notify_all()

    def report(self) -> Mapping[str, Mapping[str, Any]]:
        """Wait until the newest checkpoint is in the store, and return figures.

        Raises:
            StoreUnavailable: If it cannot be sent; it stays in the run directory.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or (self._pending is None and self._current is None)
            )
        self._raise()
        newest = self._remote.newest
        figures = {"uploads": self._num, "bytes_sent": self._num_bytes}
        return {"store": {"newest": None if newest is None else newest.name, **figures}}

    def close(self) -> None:
        self._remote.stop()
        with self._changed:
            self._is_closing, self._pending = True, None
            self._changed.notify_all()
        self._thread.join()
        self._remote.release()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _pin(self) -> None:
        self._store.pinned = frozenset(filter(None, (self._pending, self._current)))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._is_closing)
                if self._pending is None:
                    return
                self._current, self._pending = self._pending, None
                path = self._current
            try:
                self._done(self._remote.save(self._path, path, FILES))
            except BaseException as error:
                self._error = error
            with self._changed:
                self._current = None
                self._pin()
                self._changed.notify_all()
            if self._error is not None:
                return

    def _done(self, sent: Sent) -> None:
        self._num += 1
        self._num_bytes += sent.num_bytes
        self._run_log.info(
            "store",
            f"{sent.name} is in {self._remote.url}",
            bytes=sent.num_bytes,
            total_bytes=sent.total_bytes,
            seconds=round(sent.seconds, 3),
        )
