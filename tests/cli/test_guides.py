"""What the guides show works as it stands: Python runs, commands and settings are accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from tgflow.cli import app
from tgflow.config import load_config

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "examples" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDES]


def blocks(path, language):
    """Return the page's code blocks in `language`, in order."""
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_the_python_of_a_guide_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in blocks(path, "python"):
        for module in re.findall(r"# skip without (\w+)", code):
            pytest.importorskip(module)
        here = code.replace('"examples/data', f'"{ROOT}/examples/data')
        exec(compile(here, str(path), "exec"), names)  # noqa: S102


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_settings_of_a_page_are_accepted(path, tmp_path):
    for number, settings in enumerate(blocks(path, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(settings, encoding="utf-8")
        load_config(file)


def commands(path):
    """Yield the words of every `tgflow` command line of a page."""
    for block in blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["tgflow"]:
                yield words[1:]


@pytest.fixture(scope="module")
def group():
    return typer.main.get_command(app.app)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_flags_of_every_command_exist(group, path):
    context = group.make_context("tgflow", ["doctor"], resilient_parsing=True)
    for name, *words in commands(path):
        command = group.get_command(context, name)
        assert command is not None, f"{path.name}: tgflow {name}"
        known = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        unknown = {word.split("=")[0] for word in words if word.startswith("--")} - known
        assert not unknown, f"{path.name}: tgflow {name} knows no {unknown}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_files(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name}: {target}"


NAMED = re.compile(r"`((?:tgflow|csrc|streams|models|tests|examples)/[\w./-]*)`")


def test_files_that_contributors_are_sent_to_are_there():
    """But for those that a walk adds, which are all called x."""
    named = set(NAMED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    added = {name for name in named if Path(name).stem in ("x", "x_row")}
    assert added
    assert {name for name in named - added if not (ROOT / name).exists()} == set()
