"""Retry policy for broker failures."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tgflow.base.extras import install_command
from tgflow.streams.errors import SourceCorrupt, SourceRefused, SourceUnavailable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retry waits and timeouts, in seconds.

    Args:
        first_wait: Wait after the first failure; doubled at each further one.
        idle: Time without a record after which the broker is probed.
        look: Time after which the end offsets are requested again.
        fresh: Maximum age of an end offset by which a partition counts as read to its end.
        slow: Response time above which an answer counts as an outage that ended.
        starved: Time without a record, although the broker has more, after which the consumer is
            replaced.
        verify: Timeout for the anchor records to arrive again.
        hang: Time beyond three poll timeouts after which a call of kafka-python is abandoned.
        same_damage: Number of times that the same bytes may arrive damaged before the partition
            counts as corrupt.
    """

    first_wait: float = 0.1
    last_wait: float = 30.0
    answer: float = 10.0
    idle: float = 2.0
    look: float = 1.0
    fresh: float = 3.0
    slow: float = 1.0
    starved: float = 60.0
    verify: float = 10.0
    hang: float = 30.0
    same_damage: int = 5


class RetryState:
    """Counts failures and outage time. Thread-safe."""

    def __init__(self, name: str, max_outage: float, policy: RetryPolicy) -> None:
        self._name, self._max_outage, self.policy = name, max_outage, policy
        self._lock = threading.Lock()
        self._wait = policy.first_wait
        self._last_contact = time.monotonic()
        self._out = False
        self._outage_seconds = 0.0
        self._damage: dict[str, tuple[int, Mapping[int, int]]] = {}
        self.rebuilds = 0
        self.corrupt = 0

    @property
    def outage_seconds(self) -> float:
        """Total outage in seconds, including a current one."""
        with self._lock:
            current = time.monotonic() - self._last_contact if self._out else 0.0
            return self._outage_seconds + current

    def note_contact(self, since: float | None = None) -> None:
        """Record a response of the broker; `since` is the time of the request if it was slow."""
        with self._lock:
            now = time.monotonic()
            if self._out:
                self._outage_seconds += now - self._last_contact
            elif since is not None:
                self._outage_seconds += now - since
            self._out, self._wait, self._last_contact = False, self.policy.first_wait, now

    def note_failure(self, error: BaseException, behind: Mapping[int, int] | None = None) -> float:
        """Record a failure and return the seconds to wait before the next attempt."""
        if is_damage(error):
            self._damaged(error, behind or {})
        with self._lock:
            self._out = True
            away = time.monotonic() - self._last_contact
        if away >= self._max_outage:
            text = f"no answer for {away:.0f} s ({said(error)})"
            way_out = "check that it runs, then resume to continue here"
            raise SourceUnavailable(self._name, "unavailable", f"{text}; {way_out}") from error
        wait, self._wait = self._wait, min(2 * self._wait, self.policy.last_wait)
        self.rebuilds += 1
        return wait

    def _damaged(self, error: BaseException, behind: Mapping[int, int]) -> None:
        """Count repeated damage; reset the count of partitions that were read past it."""
        self.corrupt += 1
        what = said(error)
        stuck = {w: (n, dict(p.items() & behind.items())) for w, (n, p) in self._damage.items()}
        self._damage = {w: (n, cursors) for w, (n, cursors) in stuck.items() if cursors}
        count, cursors = self._damage.get(what, (0, behind))
        self._damage[what] = count + 1, cursors
        if count + 1 >= self.policy.same_damage:
            text = f"the same bytes were damaged {count + 1} times ({what}); repair the partition"
            raise SourceCorrupt(
                self._name, "corrupt", f"{text}, or start a run after it"
            ) from error


class ConnectionNotices:
    """Warns of a broker that does not answer after `FIRST_NOTICE` seconds, then ever less often."""

    FIRST_NOTICE = 3.0

    def __init__(self, topic: str, servers: Sequence[str], timeout: float) -> None:
        self._topic, self._servers, self.timeout = topic, ", ".join(servers), timeout
        self._since, self._next = time.monotonic(), self.FIRST_NOTICE

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._since + self.timeout - time.monotonic())

    def check(self) -> None:
        """Warn if it is time to."""
        waited = time.monotonic() - self._since
        if waited >= self._next and self.left:
            self._next = 2 * waited
            way_out = "--set kafka.connect_timeout=S"
            text = f"topic %s: no answer from %s for %.0f s; trying for %g s ({way_out})"
            _log.warning(text, self._topic, self._servers, waited, self.timeout)

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Warn from a thread while the calls of the context block."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                self.check()

        thread = threading.Thread(target=watch, name="tgflow-kafka-notices", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def failure(self, reason: str) -> str:
        """Return the message for a broker that never answered."""
        why = f" ({reason})" if reason else ""
        return (
            f"no answer from {self._servers} within {self.timeout:g} s{why}; check that it runs "
            "and that the address and the options are right, or wait longer with "
            "connect_timeout=..."
        )


class ClientWatch:
    """Makes clients of kafka-python, as its option `kafka_client`.

    By itself kafka-python logs why a connection fails, and retries until a timeout without reason;
    here the reason is kept, and what no retry can heal is raised at once.
    """

    def __init__(self) -> None:
        self.has_answered = False
        self.failure: BaseException | None = None
        self.rejection: Exception | None = None
        """Why the broker did not take the latest records, which kafka-python sends again."""

    def __call__(self, **settings: Any) -> Any:
        """Return a client; `settings` are those of `kafka.KafkaClient`."""
        from kafka.errors import KafkaConnectionError, KafkaTimeoutError
        from kafka.net.compat import KafkaNetClient
        from kafka.net.manager import KafkaConnectionManager
        from kafka.net.selector import NetworkSelector

        watch = self

        class Manager(KafkaConnectionManager):  # type: ignore[misc]
            def get_connection(self, *args: Any, **options: Any) -> Any:
                if watch.failure is not None and is_final(watch.failure):
                    raise watch.failure
                connection = super().get_connection(*args, **options)
                connection.init_future.add_errback(watch._note)
                return connection

            def send(self, *args: Any, **options: Any) -> Any:
                future = super().send(*args, **options).add_callback(watch._note_produced)
                return future if self.bootstrapped else future.add_both(watch._note)

            def bootstrap(self, *args: Any, **options: Any) -> None:
                try:
                    super().bootstrap(*args, **options)
                except KafkaTimeoutError:
                    if watch.failure is None or is_final(watch.failure):
                        raise watch.failure or KafkaTimeoutError from None
                    raise KafkaConnectionError(said(watch.failure)) from None

        net = NetworkSelector(**settings)
        return KafkaNetClient(net=net, manager=Manager(net, **settings), **settings)

    def _note_produced(self, response: Any) -> None:
        from kafka.errors import for_code

        for topic in getattr(response, "responses", ()):
            for partition in getattr(topic, "partition_responses", ()):
                code = partition.error_code
                self.rejection = for_code(code)(topic.name) if code else None

    def _note(self, found: object) -> None:
        """Keep the error of a connection, or the result of a first request."""
        from kafka.errors import KafkaConfigurationError, SaslAuthenticationFailedError

        if type(found) is KeyError:  # of SCRAM: the broker answers with an error, not a signature
            self.failure = SaslAuthenticationFailedError("the broker refused the login")
        elif not isinstance(found, Exception):
            self.has_answered, self.failure = True, None
        elif type(found) in (RuntimeError, TypeError, ValueError):  # of a SASL mechanism
            self.failure = KafkaConfigurationError(str(found))
        else:  # kafka-python wraps the error of a handshake
            within = found.__context__
            self.failure = within if isinstance(within, ssl.SSLError) else found


@contextmanager
def checking_options() -> Iterator[None]:
    """Raise `KafkaConfigurationError` for an option that a constructor of kafka-python refuses."""
    from kafka.errors import KafkaConfigurationError

    try:
        yield
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise KafkaConfigurationError(str(error)) from error


def said(error: BaseException) -> str:
    """Return an error in the client's own words, with its class."""
    name, text = type(error).__name__, str(error)
    return text if name in text else f"{name}: {text}"


def is_damage(error: BaseException) -> bool:
    """Return whether `error` was caused by a malformed response.

    kafka-python raises its own errors for all other failures, and OS errors for sockets.
    """
    from kafka.errors import CorruptRecordError, KafkaError

    is_known = isinstance(error, KafkaError | OSError | TimeoutError)
    return isinstance(error, CorruptRecordError) or not is_known


def is_final(error: BaseException | None) -> bool:
    """Return whether a retry cannot help: other options or permissions are needed."""
    return error is not None and _way_out(error) is not None


def refused(name: str, error: BaseException) -> SourceRefused:
    """Return the message of an error that is final: the client's words, and the fix."""
    return SourceRefused(name, "refused", f"{said(error)}; {_way_out(error)}")


def _way_out(error: BaseException) -> str | None:
    """Return the fix of an error that no retry can heal, None for others."""
    from kafka import errors

    option, tls = "correct --kafka-option", "security_protocol, ssl_cafile, ssl_certfile"
    login = "sasl_plain_username, sasl_plain_password=env:NAME or sasl_mechanism"
    fixes = {
        (ssl.SSLEOFError, ssl.SSLZeroReturnError): None,  # the connection was cut
        (ssl.SSLError, FileNotFoundError, PermissionError): f"{option} {tls} or ssl_keyfile",
        errors.UnsupportedCodecError: install_command("kafka"),
        errors.SaslAuthenticationFailedError: f"{option} {login}",
        errors.UnsupportedSaslMechanismError: f"{option} sasl_mechanism",
        errors.IllegalSaslStateError: f"{option} security_protocol",
        errors.AuthorizationError: "the user of these options needs that permission",
        (errors.UnsupportedVersionError, errors.UnsupportedCompressionTypeError): f"{option} "
        "api_version",
        errors.KafkaConfigurationError: option,
    }
    return next((fix for kind, fix in fixes.items() if isinstance(error, kind)), None)
