"""Mock of TensorBoard that keeps logged data in memory."""

import sys
from collections import defaultdict
from types import ModuleType
from typing import Any, ClassVar

import pytest


class FakeWriter:
    """Mock of torch's `SummaryWriter`; `shown` is what TensorBoard would display for a folder."""

    shown: ClassVar[dict[str, list[tuple[int, str, float]]]] = defaultdict(list)

    def __init__(self, log_dir: str, purge_step: int) -> None:
        self._log_dir, self._is_open = log_dir, True
        kept = [each for each in self.shown[log_dir] if each[0] < purge_step]
        self.shown[log_dir] = kept

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        assert self._is_open
        self.shown[self._log_dir].append((global_step, tag, value))

    def flush(self) -> None:
        assert self._is_open

    def close(self) -> None:
        self._is_open = False


def fake_tensorboard(monkeypatch: pytest.MonkeyPatch) -> type[FakeWriter]:
    """Redirect TensorBoard logging to `FakeWriter.shown`."""
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, module.__name__, module)
    FakeWriter.shown.clear()
    return FakeWriter
