"""Public class names are unique, and spelling is consistent."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("tgflow", "streams", "models")
CATALOG = re.compile(r"def test_[a-z]{1,2}\d+_|\"\"\"[A-Z]\d+[,:]")
CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
BRITISH = re.compile(
    r"neighbour|optimiser|(synchron|amort|normal|initial|serial|minim|maxim|organ|recogn)is(e|a|i)"
    r"|behaviour|colour|\blearnt\b|\bcancelled\b",
    re.IGNORECASE,
)


def sources(*endings, rooms=(*ROOMS, "csrc")):
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in endings:
                yield path


def test_no_two_public_classes_share_a_name():
    homes = defaultdict(list)
    for path in sources(".py"):
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            homes[name].append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_sources_and_texts_use_american_spelling():
    endings = (".py", ".cpp", ".hpp", ".cu", ".md", ".ipynb")
    rooms = (*ROOMS, "csrc", "tests", "examples")
    for path in (*sources(*endings, rooms=rooms), *ROOT.glob("*.md")):
        found = BRITISH.search(path.read_text(encoding="utf-8"))
        assert not found or path == Path(__file__), f"{path}: {found.group()}"


def test_names_and_docstrings_of_tests_have_no_catalog_numbers():
    for path in sources(".py", rooms=("tests",)):
        found = CATALOG.search(path.read_text(encoding="utf-8"))
        assert not found or path == Path(__file__), f"{path}: {found.group()}"
