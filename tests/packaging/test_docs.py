"""The documentation site has the public API, and loads nothing from other hosts."""

import doctest
import inspect
import re
import subprocess
from pathlib import Path

import pytest

import tgflow as tg
from helpers.effort import slow
from tgflow.cli import main

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r'<(?:script|img|iframe) [^>]*src="(?:https?:)?//')


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_site_has_the_public_api_and_loads_nothing_from_other_hosts():
    pytest.importorskip("mkdocs")
    subprocess.run(["make", "--silent", "docs"], cwd=ROOT, check=True)  # strict: checks links
    site = ROOT / "build" / "site"
    api = (site / "api" / "tgflow.html").read_text()
    names = [name for name in tg.__all__ if not inspect.ismodule(getattr(tg, name))]
    assert [name for name in names if f'id="tgflow.{name}"' not in api] == []
    listed = (site / "llms.txt").read_text()
    places = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")}
    for place in places - {"404.md", "examples/data/index.md"}:
        assert f"/{place})" in listed, place
        assert (site / place).is_file()
    pages = [path.read_text() for path in site.rglob("*.html")]
    assert [LOADED.search(page).group() for page in pages if LOADED.search(page)] == []


def find(name):
    thing = tg
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def exported(module):
    return [f"{module}.{name}" for name in getattr(getattr(tg, module), "__all__", ())]


def text_of(name):
    """Return the docstring of a name; empty for constants and core functions."""
    thing = find(name)
    has_own = inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing)
    return (thing.__doc__ or "") if has_own else ""


MODULES = [name for name in tg.__all__ if inspect.ismodule(getattr(tg, name))]
NAMES = [name for name in tg.__all__ if name not in MODULES] + exported("callbacks")
FURTHER = [name for module in MODULES for name in exported(module)]
EXAMPLES = {name: text for name in NAMES + FURTHER if ">>> " in (text := text_of(name))}
NEED = {
    "sampling.to_dgl": "dgl",
    "sampling.to_pyg": "torch_geometric",
    "callbacks.TensorBoard": "tensorboard",
}
"""Names whose examples need optional packages."""
LONG = {"OfflineTrainer", "train.OfflineTrainer", "run.Run", "open_run", "run.open_run", *NEED}
"""Names whose examples take a second."""
OPENING = ("run.Run", "open_run", "run.open_run")
"""Names whose examples use the run in runs/pay."""


def test_every_public_name_has_an_example():
    for name in set(NAMES) - EXAMPLES.keys():
        thing = find(name)
        is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
        assert is_error or re.search(rf"^ *>>> .*\btg\.{name}\b", tg.__doc__, re.MULTILINE), name


@pytest.mark.parametrize("name", [slow(name) if name in LONG else name for name in EXAMPLES])
def test_examples_run(name, tmp_path, monkeypatch, capsys):
    if name in NEED:
        pytest.importorskip(NEED[name], reason=f"{NEED[name]} is not installed")
    monkeypatch.chdir(tmp_path)
    if name in OPENING:
        lines = ["src,dst,t", *(f"acc_{n % 5},shop_{n % 4},{60 * n}" for n in range(60))]
        (tmp_path / "pay.csv").write_text("\n".join(lines) + "\n")
        small = ["--dim", "8", "--neighbors", "3", "--batch-size", "20", "--threads", "1"]
        assert main(["run", "pay.csv", "-o", "runs/pay", "--time-unit", "s", *small]) == 0
        capsys.readouterr()
    threads, names, said = tg.num_threads(), {}, []
    runner = doctest.DocTestRunner()
    try:
        for text in (tg.__doc__, EXAMPLES[name]):  # the first one gives names to the second
            test = doctest.DocTestParser().get_doctest(text, names, "example", None, 0)
            runner.run(test, out=said.append, clear_globs=False)
            names = test.globs
    finally:
        tg.set_num_threads(threads)
    assert runner.failures == 0, "".join(said)
