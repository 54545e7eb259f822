"""Every public name has an example in its docstring, which runs and says what it says."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import pytest

import tgflow as tg
from helpers.effort import slow
from tgflow.cli import main


def _exported(module: str) -> list[str]:
    return [f"{module}.{name}" for name in getattr(getattr(tg, module), "__all__", ())]


MODULES = [name for name in tg.__all__ if inspect.ismodule(getattr(tg, name))]
FURTHER = [name for module in MODULES for name in _exported(module)]
NAMES = [name for name in tg.__all__ if name not in MODULES] + _exported("callbacks")
NEED = {
    "sampling.to_dgl": "dgl",
    "sampling.to_pyg": "torch_geometric",
    "callbacks.TensorBoard": "tensorboard",
    "callbacks.WandB": "wandb",
}
"""Names whose examples need packages that may not be there."""
LONG = {"OfflineTrainer", "runtime.Run", "open_run", *NEED}
"""Names whose examples take a second."""


def find(name: str) -> Any:
    thing: Any = tg
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def text_of(name: str) -> str:
    """Return the docstring of a name; of a constant, or of a function of the core, nothing."""
    thing = find(name)
    has_own = inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing)
    return (thing.__doc__ or "") if has_own else ""


def has_example(name: str) -> bool:
    shown = re.search(rf"^ *>>> .*\btg\.{name}\b", tg.__doc__ or "", re.MULTILINE)
    return ">>> " in text_of(name) or shown is not None


def is_error(name: str) -> bool:
    thing = find(name)
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def run_examples(text: str, names: dict[str, Any]) -> None:
    """Run the examples of a docstring with some names, which they may add to."""
    test = doctest.DocTestParser().get_doctest(text, names, "example", None, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner()
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert runner.failures == 0, "".join(said)


def make_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Leave the run that examples open in runs/pay."""
    lines = ["src,dst,t", *(f"acc_{n % 5},shop_{n % 4},{60 * n}" for n in range(60))]
    with open("pay.csv", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    small = ["--dim", "8", "--neighbors", "3", "--batch-size", "20", "--threads", "1"]
    assert main(["run", "pay.csv", "-o", "runs/pay", "--time-unit", "s", *small]) == 0
    capsys.readouterr()


def test_every_public_name_has_an_example():
    assert [name for name in NAMES if not is_error(name) and not has_example(name)] == []


@pytest.mark.parametrize(
    "name",
    [
        slow(name) if name in LONG else name
        for name in ["", *dict.fromkeys(NAMES + FURTHER)]
        if not name or ">>> " in text_of(name)
    ],
)
def test_examples_run(name, tmp_path, monkeypatch, capsys):
    if name in NEED:
        pytest.importorskip(NEED[name], reason=f"{NEED[name]} is not installed")
    monkeypatch.chdir(tmp_path)
    if name in ("runtime.Run", "open_run", "runtime.open_run"):
        make_run(capsys)
    threads, names = tg.num_threads(), dict[str, Any]()
    try:
        run_examples(tg.__doc__ or "", names)
        run_examples(text_of(name) if name else "", names)
    finally:
        tg.set_num_threads(threads)
