"""Prints the packages that pyproject.toml asks for: packages.py build|run|EXTRA ..., one a line."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())
groups = {
    "build": project["build-system"]["requires"] + ["cmake", "ninja"],
    "run": project["project"]["dependencies"],
    **project["project"]["optional-dependencies"],
}
for name in sys.argv[1:]:
    print(*groups[name], sep="\n")
