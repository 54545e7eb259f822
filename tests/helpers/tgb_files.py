"""A small generated data set in TGB's format: edge list and pickled negatives."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

Row = tuple[int, int, int]
NUM_USERS = 6
NUM_ITEMS = 8


def jodie_rows(num: int = 120, seed: int = 3) -> list[Row]:
    """Return users and items, counted apart from 0, at times that tie."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(NUM_USERS, size=num), rng.integers(NUM_ITEMS, size=num)
    users[:NUM_USERS], items[:NUM_ITEMS] = range(NUM_USERS), range(NUM_ITEMS)
    t = rng.integers(0, 3, size=num).cumsum()
    return list(zip(users.tolist(), items.tolist(), t.tolist(), strict=True))


def shifted(rows: list[Row]) -> list[Row]:
    """Return the rows as TGB numbers them: items after users."""
    first = max(src for src, _, _ in rows) + 1
    return [(src, dst + first, t) for src, dst, t in rows]


def negatives_of(rows: list[Row], seed: int = 5) -> dict[Row, np.ndarray]:
    """Return one to four other items for each row, numbered after the users."""
    rng = np.random.default_rng(seed)
    items = np.arange(NUM_USERS, NUM_USERS + NUM_ITEMS)
    return {row: rng.permutation(items[items != row[1]])[: rng.integers(1, 5)] for row in rows}


def parts_of(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows of validation and of the test, by the quantiles of time."""
    val_time, test_time = np.quantile([t for _, _, t in rows], [0.70, 0.85])
    val = [row for row in rows if val_time < row[2] <= test_time]
    return val, [row for row in rows if row[2] > test_time]


def write_tgb(folder: Path, rows: list[Row] | None = None, protocol: int = 4) -> list[Row]:
    """Write tgbl-made's three files; return its rows as TGB numbers them."""
    folder.mkdir(exist_ok=True)
    rows = jodie_rows() if rows is None else rows
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"
    lines = [f"{src},{dst},{t}.0,0,{src / 10},1.0" for src, dst, t in rows]
    (folder / "tgbl-made_edgelist_v2.csv").write_text("\n".join([header, *lines]) + "\n")
    events = shifted(rows)
    for part, own in zip(("val", "test"), parts_of(events), strict=True):
        data = pickle.dumps(negatives_of(own), protocol=protocol)
        (folder / f"tgbl-made_{part}_ns_v2.pkl").write_bytes(data)
    return events
