"""Mock of TensorBoard that keeps logged data in memory."""

import sys
import time
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import ClassVar


class FakeWriter:
    """Mock of torch's `SummaryWriter`; `shown` is what TensorBoard would display for a folder."""

    shown: ClassVar[dict[str, list[tuple[int, str, float]]]] = defaultdict(list)

    def __init__(self, log_dir, purge_step):
        self._log_dir, self._is_open = log_dir, True
        if purge_step is not None:
            kept = [each for each in self.shown[log_dir] if each[0] < purge_step]
            self.shown[log_dir] = kept
        Path(log_dir).mkdir(exist_ok=True)
        self._file = Path(log_dir, f"events.out.tfevents.{time.time_ns()}")
        self._file.touch()

    def add_scalar(self, tag, value, global_step):
        assert self._is_open
        self.shown[self._log_dir].append((global_step, tag, value))
        self._file.write_bytes(self._file.read_bytes() + bytes(50))

    def flush(self):
        assert self._is_open

    def close(self):
        self._is_open = False


def fake_tensorboard(monkeypatch):
    """Redirect TensorBoard logging to `FakeWriter.shown`."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, module.__name__, module)
    FakeWriter.shown.clear()
    return FakeWriter
