"""The command that installs an optional extra of this package."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "tgflow-learn"


def install_command(extra: str) -> str:
    """Return the `pip install` command of an extra, for where this package was installed from.

    The command names the clone or the wheel, while it exists; otherwise the packages of the extra.

    Example:
        >>> from tgflow.base.extras import install_command
        >>> install_command("pyg").startswith("pip install ")
        True
    """
    installed = distribution(DISTRIBUTION)
    wanted = [text.partition(";") for text in installed.requires or ()]
    packages = [
        name.strip()
        for name, _, marker in wanted
        if f"extra == '{extra}'" in marker.replace('"', "'")
    ]
    if not packages:
        raise ValueError(f"{DISTRIBUTION} has no extra {extra!r}")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    url = urlsplit(origin.get("url", ""))
    place = Path(url2pathname(url.path))
    if url.scheme != "file" or not place.exists():
        return " ".join(["pip install", *(f"'{package}'" for package in packages)])
    edit = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {edit}'{'.' if place == Path.cwd() else place}[{extra}]'"
