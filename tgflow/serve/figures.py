"""What a server has done, for Prometheus."""

from __future__ import annotations

from typing import Any

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class ServeFigures:
    """Counts requests."""

    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._requests = Counter(
            "tgflow_serve_requests",
            "Requests by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "tgflow_serve_seconds",
            "Time from the headers of a request to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.waiting = Gauge(
            "tgflow_serve_waiting", "Questions that wait for their answers.", registry=registry
        )
        """Of requests that are being read, too."""

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)
