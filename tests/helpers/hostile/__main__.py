"""Tries every wrong argument against every entry of the native core: `python -m helpers.hostile`.

Says each attempt before it is made, so that after a crash the last line names it. Ends with 0 if
all were refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from helpers.hostile import graphs, id_maps, rows
from helpers.hostile.attempts import Call, attempt_all

CASES: dict[str, Callable[[], Call]] = {**graphs.CASES, **id_maps.CASES, **rows.CASES}
"""A maker of a call for every entry of the core."""

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(attempt_all(CASES) > 0)
