"""A file that is replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tgflow.durable.fs import sync_data


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Give a path to write a file to, which takes the place of `path` where the block is left.

    Readers find what was written or what was there before, also after a crash if it is synced.
    Which of both a crash leaves is certain once the names in the directory are synced.

    Args:
        path: The file. Meanwhile `.NAME.partial` is beside it; an error in the block removes that.
        sync: Whether the bytes are on the disk before the names change.

    Raises:
        OSError: If it cannot be written; `path` is as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        if sync:
            _sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Let a file hold these bytes and no others, synced; it is made if it is not there.

    Args:
        path: The file, see `replacing`.
        parts: What it is to hold, one after another; they may come from the file itself.

    Raises:
        OSError: If they cannot be written; the file is as it was.
    """
    with replacing(path) as partial, partial.open("wb") as file:
        file.writelines(parts)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        sync_data(fd)
    finally:
        os.close(fd)
