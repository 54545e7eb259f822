"""Small data sets that ship with tgflow.

Example:
    >>> tg.datasets.collegemsg().unit
    's'
"""

from __future__ import annotations

from pathlib import Path

from tgflow.base._native import CORE_FILE
from tgflow.streams import Source, open_stream

FOLDER = Path(CORE_FILE).parent / "datasets"


def collegemsg() -> Source:
    """Return the stream of 59,835 private messages among 1,899 students, in seconds.

    CollegeMsg: Panzarasa, Opsahl and Carley, Patterns and dynamics of users' behavior and
    interaction, JASIST 60(5), 2009; known as UCI in papers on temporal graphs.

    Example:
        >>> stream = tg.datasets.collegemsg()
        >>> len(next(iter(stream))) > 0
        True
    """
    return open_stream(FOLDER / "collegemsg.csv.gz", time_unit="s")
