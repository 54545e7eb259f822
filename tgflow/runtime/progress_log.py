"""Progress of a run as log lines, where machines read its messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tgflow.report.display import SECONDS_PER_LINE
from tgflow.report.formatting import compact, score
from tgflow.runtime.log import RunLog


class ProgressLog:
    """Logs the record of a micro-batch every few seconds.

    Args:
        run_log: Gets the lines.
    """

    def __init__(self, run_log: RunLog) -> None:
        self._run_log = run_log
        self._logged_at = time.monotonic()

    def update(self, record: Mapping[str, Any]) -> None:
        """Log `record` if it is time."""
        if time.monotonic() - self._logged_at < SECONDS_PER_LINE:
            return
        self._logged_at = time.monotonic()
        text = (
            f"{record['stop']:,} events, {compact(record['events_per_second'])} events/s, "
            f"AP {score(record.get('running.ap') or float('nan'))}"
        )
        self._run_log.progress(text, **record)
