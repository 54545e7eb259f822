"""When failures are retried, and when they end a source."""

from __future__ import annotations

import pytest

from tgflow.streams.errors import (
    SourceCorrupt,
    SourceUnavailable,
)
from tgflow.streams.kafka.retry import RetryPolicy, RetryState


class TestRetryState:
    def damage(self, retry, *offsets, text="2 bytes are left"):
        for offset in offsets:
            retry.note_failure(ValueError(text), {0: offset, 1: 9})

    def test_the_same_damage_at_the_same_place_is_an_error(self):
        retry = RetryState("topic edges", 600.0, RetryPolicy())
        self.damage(retry, 7, 7, 7, 7)
        with pytest.raises(SourceCorrupt, match="came damaged 5 times"):
            self.damage(retry, 7)

    def test_damage_elsewhere_is_counted_for_itself(self):
        retry = RetryState("topic edges", 600.0, RetryPolicy())
        for first in range(0, 1000, 100):
            for _ in range(2):
                retry.note_failure(ValueError("2 bytes are left"), {0: first})

    def test_damage_that_was_read_past_is_forgotten(self):
        retry = RetryState("topic edges", 600.0, RetryPolicy())
        for offset in range(20):
            retry.note_failure(ValueError("2 bytes are left"), {0: offset})
            retry.note_failure(ValueError("3 bytes are left"), {0: offset})
        assert retry.corrupt == 40

    def test_what_fails_for_ever_without_a_place_is_an_outage(self):
        clock = FakeClock()
        retry = RetryState("topic edges", 600.0, RetryPolicy(), clock)
        for clock.now in range(0, 600, 100):
            retry.note_failure(AttributeError("no such thing"), {})
        clock.now = 600
        with pytest.raises(SourceUnavailable, match="AttributeError"):
            retry.note_failure(AttributeError("no such thing"), {})


class FakeClock:
    now = 0.0

    def monotonic(self):
        return self.now
