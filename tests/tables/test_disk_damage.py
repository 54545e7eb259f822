"""Files of tables that were damaged: an error that names the row, and never an answer."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from helpers.forged import flip_bit
from tgflow.tables import DamagedFile, FeatureTable


def some_rows(size):
    return torch.randn(size, 3, generator=torch.Generator().manual_seed(size))


def on_disk(path):
    return FeatureTable(3, placement="disk", path=path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows"


def test_any_changed_bit_is_an_error_or_changes_nothing(path):
    rows, page = some_rows(6), 8 * 4096
    with closing(on_disk(path)) as table:
        table.append(rows)
        table.sync()
    good = path.read_bytes()
    for bit in (*range(0, 1_000, 13), *range(page, min(8 * len(good), page + 1_000), 7)):
        path.write_bytes(flip_bit(good, bit))
        try:
            with closing(on_disk(path)) as table:
                assert torch.equal(table[torch.arange(len(table))], rows), bit
        except DamagedFile:
            continue
