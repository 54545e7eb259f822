"""Weights & Biases logger."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tgflow.base.describe import described
from tgflow.checkpoint.durable.fs import replacing
from tgflow.report.callbacks.logger import FigureCallback, group_figures, package


@described
class WandB(FigureCallback):
    """Logs figures to Weights & Biases, offline: nothing is sent until you run `wandb sync`.

    Args:
        directory: Parent directory of the folder `wandb`.
        step: Current step of the training. On resume (above 0) the run id stored in the directory
            is reused; figures already logged for later steps cannot be removed, and are not logged
            again.
        options: Further options of `wandb.init`, such as `project="pay"` or `mode="online"`.

    Raises:
        ModuleNotFoundError: If the package wandb is not installed.
        OSError: If the directory cannot be written to.

    Example:
        >>> with tg.callbacks.WandB("runs/pay", project="pay") as logger:
        ...     logger.log(200, {"loss": 0.7, "running.ap": 0.8})
    """

    def __init__(self, directory: str | os.PathLike[str], *, step: int = 0, **options: Any) -> None:
        wandb = package("wandb")
        self.directory = Path(directory)
        self._note = self.directory / "wandb" / "tgflow.json"
        self._note.parent.mkdir(parents=True, exist_ok=True)
        self._id, self._last = _noted(self._note) if step else ("", 0)
        self._id = self._id or secrets.token_hex(4)
        self._last = max(self._last, step)
        offline = {"mode": "offline", "project": "tgflow", "resume": "allow"}
        self._run = wandb.init(dir=str(self.directory), id=self._id, **offline | options)

    def _facts(self) -> dict[str, object]:
        return {"directory": str(self.directory), "id": self._id}

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Log the figures of a step, unless they were logged before."""
        if step <= self._last:
            return
        self._run.log(group_figures(figures), step=step)
        self._last = step
        with replacing(self._note, sync=False) as partial:
            partial.write_text(json.dumps({"id": self._id, "step": step}), encoding="utf-8")

    def close(self) -> None:
        """Block until all figures are written."""
        self._run.finish()


def _noted(path: Path) -> tuple[str, int]:
    """Return the run id and the last step logged; empty without a note."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(path.read_text(encoding="utf-8"))
        return str(noted["id"]), int(noted["step"])
    return "", 0
