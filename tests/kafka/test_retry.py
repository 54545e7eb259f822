"""When failures are retried, and when they end a source."""

from __future__ import annotations

import pytest

from tgflow.streams.errors import SourceCorrupt, SourceUnavailable
from tgflow.streams.kafka.retry import RetryPolicy, RetryState


class FakeClock:
    now = 0.0

    def monotonic(self):
        return self.now


def test_only_the_same_damage_at_the_same_place_is_an_error():
    retry = RetryState("topic edges", 600.0, RetryPolicy())
    for offset in range(20):  # it was read past
        retry.note_failure(ValueError("2 bytes are left"), {0: offset})
        retry.note_failure(ValueError("3 bytes are left"), {0: offset})
    assert retry.corrupt == 40
    for offset in (50, 50, 50, 50):
        retry.note_failure(ValueError("2 bytes are left"), {0: offset, 1: 9})
    with pytest.raises(SourceCorrupt, match="came damaged 5 times"):
        retry.note_failure(ValueError("2 bytes are left"), {0: 50, 1: 9})


def test_what_fails_for_ever_without_a_place_is_an_outage():
    clock = FakeClock()
    retry = RetryState("topic edges", 600.0, RetryPolicy(), clock)
    for clock.now in range(0, 600, 100):
        retry.note_failure(AttributeError("no such thing"), {})
    clock.now = 600
    with pytest.raises(SourceUnavailable, match="AttributeError"):
        retry.note_failure(AttributeError("no such thing"), {})
