"""How failures of the broker are borne: how long to wait, and when to give up."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tgflow.streams.clock import Clock
from tgflow.streams.errors import SourceCorrupt, SourceUnavailable

FIRST_WAIT, LAST_WAIT = 0.1, 30.0
SAME_DAMAGE = 5
"""How often the same bytes may come damaged before they are taken to be so on the broker."""


class Patience:
    """Counts failures and the time without a broker. Thread-safe.

    Args:
        name: What messages call the source.
        max_outage: Seconds without the broker after which it gives up.
        clock: What to measure by.
    """

    def __init__(self, name: str, max_outage: float, clock: Clock) -> None:
        self._name, self._max_outage, self._clock = name, max_outage, clock
        self._lock = threading.Lock()
        self._wait = FIRST_WAIT
        self._last_contact = clock.monotonic()
        self._out = False
        self._outage_seconds = 0.0
        self._damage: dict[str, tuple[int, Mapping[int, int]]] = {}
        self.rebuilds = 0
        self.corrupt = 0

    @property
    def outage_seconds(self) -> float:
        """Seconds without the broker so far, those of an outage that goes on included."""
        with self._lock:
            current = self._clock.monotonic() - self._last_contact if self._out else 0.0
            return self._outage_seconds + current

    def contact(self, since: float | None = None) -> None:
        """Note that the broker answered; `since` is when a slow answer was asked for."""
        with self._lock:
            now = self._clock.monotonic()
            if self._out:
                self._outage_seconds += now - self._last_contact
            elif since is not None:
                self._outage_seconds += now - since
            self._out, self._wait, self._last_contact = False, FIRST_WAIT, now

    def failed(self, error: BaseException, behind: Mapping[int, int] | None = None) -> float:
        """Note a failure and return how many seconds to wait before the next attempt.

        Args:
            error: What was raised.
            behind: The partitions that hold more, and the offset where each goes on.

        Raises:
            SourceCorrupt: If the same bytes came damaged too often.
            SourceUnavailable: If the broker has been away for too long.
        """
        if is_damage(error):
            self._damaged(error, behind or {})
        self._unreachable(error)
        wait, self._wait = self._wait, min(2 * self._wait, LAST_WAIT)
        self.rebuilds += 1
        return wait

    def _damaged(self, error: BaseException, behind: Mapping[int, int]) -> None:
        """Count damage that has come before; that of partitions which went on is forgotten."""
        self.corrupt += 1
        what = f"{type(error).__name__}: {error}"
        stuck = {w: (n, dict(p.items() & behind.items())) for w, (n, p) in self._damage.items()}
        self._damage = {w: (n, places) for w, (n, places) in stuck.items() if places}
        count, places = self._damage.get(what, (0, behind))
        self._damage[what] = count + 1, places
        if count + 1 >= SAME_DAMAGE:
            text = f"the same bytes came damaged {SAME_DAMAGE} times ({what}); mend the partition"
            raise SourceCorrupt(
                self._name, "corrupt", f"{text}, or start a run after it"
            ) from error

    def _unreachable(self, error: BaseException) -> None:
        with self._lock:
            self._out = True
            away = self._clock.monotonic() - self._last_contact
        if away >= self._max_outage:
            text = f"no answer from the broker for {away:.0f} s ({type(error).__name__}: {error})"
            way_out = "see that it runs, and start again to go on where this stopped"
            raise SourceUnavailable(self._name, "unavailable", f"{text}; {way_out}") from error


def is_damage(error: BaseException) -> bool:
    """Return whether `error` came from bytes that are not what the broker must send.

    kafka-python raises its own errors for everything else, the operating system's for sockets.
    """
    from kafka.errors import CorruptRecordError, KafkaError

    if isinstance(error, CorruptRecordError):
        return True
    return not isinstance(error, KafkaError | OSError | TimeoutError)


def is_final(error: BaseException) -> bool:
    """Return whether asking again cannot help: other options are needed, or other rights."""
    from kafka import errors

    kinds = (
        errors.KafkaConfigurationError,
        errors.IncompatibleBrokerVersion,
        errors.UnsupportedVersionError,
        errors.AuthorizationError,
        errors.SaslAuthenticationFailedError,
        errors.TopicAuthorizationFailedError,
    )
    return isinstance(error, kinds)
