"""Messages that name an optional package give a command that installs it."""

import json
import re
import tomllib
from importlib.metadata import PathDistribution, distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tgflow.base import extras
from tgflow.base.extras import install_command

ROOT = Path(__file__).resolve().parents[2]
SERVE = (
    "httptools>=0.6; extra == 'serve'",
    'uvicorn>=0.30 ; (os_name == "posix") and extra == "serve"',
)


@pytest.fixture
def installed_from(tmp_path, monkeypatch):
    """Return a function that changes where the package was installed from."""

    def change(origin):
        info = tmp_path / "tgflow_learn-1.dist-info"
        info.mkdir()
        requires = [f"Requires-Dist: {line}" for line in ("torch>=2.1", *SERVE)]
        (info / "METADATA").write_text("\n".join(["Name: tgflow-learn", *requires, ""]))
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.setattr(extras, "distribution", lambda _: PathDistribution(info))

    return change


@pytest.mark.parametrize(("editable", "option"), [(False, ""), (True, "-e ")])
def test_clone_is_named(installed_from, tmp_path, monkeypatch, editable, option):
    clone = tmp_path / "my clone"
    clone.mkdir()
    installed_from({"url": clone.as_uri(), "dir_info": {"editable": editable}})
    assert install_command("serve") == f"pip install {option}'{clone}[serve]'"
    monkeypatch.chdir(clone)
    assert install_command("serve") == f"pip install {option}'.[serve]'"


def test_wheel_is_named_while_it_exists(installed_from, tmp_path):
    wheel = tmp_path / "tgflow_learn-1-py3-none-any.whl"
    wheel.touch()
    installed_from({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("serve") == f"pip install '{wheel}[serve]'"
    wheel.unlink()
    assert install_command("serve") == "pip install 'httptools>=0.6' 'uvicorn>=0.30'"


def test_without_an_origin_packages_are_named(installed_from):
    installed_from(None)
    assert install_command("serve") == "pip install 'httptools>=0.6' 'uvicorn>=0.30'"
    with pytest.raises(ValueError, match="no extra 'nothing'"):
        install_command("nothing")


def test_named_extras_exist_and_texts_are_made_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folders = ("tgflow", "streams", "models", "examples", "tests")
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".ipynb") and path != Path(__file__)
    }
    texts |= {path: path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")}
    named = set()
    for path, text in texts.items():
        assert not re.search(rf"pip install[^\n]*\b({project['name']}|tgflow)\b", text), path
        named.update(re.findall(r"\b(?:install_command|package)\(['\"](\w+)['\"]\)", text))
        named.update(*(found.split(",") for found in re.findall(r"'\.\[([\w,]+)\]'", text)))
    assert {"serve", "kafka", "cuda", "tensorboard"} <= named
    assert not named - project["optional-dependencies"].keys()


def test_pinned_packages_that_are_installed_admit_the_python_of_debian_12():
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()[1:]
    pins = {canonicalize_name(line.partition("==")[0]) for line in lines}
    needs = {canonicalize_name(d.name): d.metadata["Requires-Python"] for d in distributions()}
    assert len(pins & needs.keys()) > 50
    found = {name: needs[name] for name in pins & needs.keys() if needs[name]}
    assert {n: need for n, need in found.items() if "3.11.2" not in SpecifierSet(need)} == {}
