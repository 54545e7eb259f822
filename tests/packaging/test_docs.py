"""The documentation site has the public API, and loads nothing from other hosts."""

from __future__ import annotations

import inspect
import re
import subprocess
from pathlib import Path

import pytest

import tgflow as tg

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
    pages = [path.read_text() for path in site.rglob("*.html")]
    assert [LOADED.search(page).group() for page in pages if LOADED.search(page)] == []
