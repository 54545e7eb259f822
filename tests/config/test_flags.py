"""What the library says of its settings, as a command line says it."""

from __future__ import annotations

import pytest

from tgflow.config.flags import in_flags


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("pass id_kind='string' to take ids as text", "pass --id-kind string to take ids as text"),
        ("pass sort=True to sort it", "pass --sort to sort it"),
        ("choose with src=...", "choose with --src ..."),
        ('use device="cpu"', "use --device cpu"),
        ("allowed_lateness is 0, raise it", "--allowed-lateness is 0, raise it"),
        ("max_time_jump is 5", "--max-time-jump is 5"),
        ("set late to dead_letter or drop", "set late to dead_letter or drop"),
        ("the column 'time_unit' of a.csv", "the column 'time_unit' of a.csv"),
        ("--time-unit ms; x=3, some_name=4", "--time-unit ms; x=3, some_name=4"),
        ("table.gather_rows(ids) failed", "table.gather_rows(ids) failed"),
        ("rank 1 has --seed=1, rank 0 --seed=0", "rank 1 has --seed=1, rank 0 --seed=0"),
    ],
)
def test_settings_are_named_by_their_flags(said, shown):
    assert in_flags(said) == shown
