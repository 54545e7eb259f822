"""A file that is replaced as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tgflow.durable.fs import sync_data


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Let a file hold these bytes and no others; it is made if it is not there.

    Readers, also after a crash, find all of them or what was there before. Which of both a crash
    leaves is certain once the names in the directory are synced.

    Args:
        path: The file. Meanwhile `.NAME.partial` is beside it.
        parts: What it is to hold, one after another; they may come from the file itself.

    Raises:
        OSError: If they cannot be written; the file is as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(parts)
            file.flush()
            sync_data(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
