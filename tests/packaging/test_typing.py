"""Type checkers and editors find the types of regular and editable installations."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

import tgflow

CODE = """
import tgflow as tg
from tgflow.models import TGN
from tgflow.streams import Source
reveal_type(tg.TemporalGraph().num_events)
reveal_type(TGN)
reveal_type(Source)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="there is no mypy")
def test_type_checker_resolves_the_public_names(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--cache-dir", "cache", "code.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    revealed = [line for line in done.stdout.splitlines() if "Revealed" in line]
    assert len(revealed) == 3, done.stdout
    assert not [line for line in revealed if '"Any"' in line]


@pytest.mark.slow
def test_editor_completes_the_public_names():
    jedi = pytest.importorskip("jedi")
    environment = jedi.create_environment(sys.prefix, safe=False)

    def completed(code):
        return {name.name for name in jedi.Script(code, environment=environment).complete()}

    assert set(tgflow.__all__) <= completed("import tgflow as tg\ntg.")
    assert "append" in completed("import tgflow as tg\ntg.TemporalGraph().")
