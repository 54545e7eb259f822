"""Pages of the site: the repository's, in their places so that their links hold, and the API's."""

import inspect
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

import tgflow as tg

ROOT = Path(__file__).resolve().parents[1]
TOP = ("README.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md")
MODULES = [name for name in tg.__all__ if inspect.ismodule(getattr(tg, name))]
PUBLIC = {
    "tgflow": [name for name in tg.__all__ if name not in MODULES],
    **{(room := getattr(tg, name)).__name__: getattr(room, "__all__", ()) for name in MODULES},
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add a page for each public module to the navigation."""
    (api,) = (section for section in config.nav if "API" in section)
    api["API"] = [{package: f"api/{package}.md"} for package in PUBLIC]
    return config


@event_priority(100)  # before llmstxt looks for pages
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's pages and what they show, and a page for each public module."""
    shown = [path for path in (ROOT / "examples").rglob("*.*") if "__pycache__" not in path.parts]
    for path in [*(ROOT / name for name in TOP), *shown]:
        place = path.relative_to(ROOT).as_posix()
        files.append(File(place, str(ROOT), config.site_dir, config.use_directory_urls))
    for package, names in PUBLIC.items():
        text = f"# {package}\n\n::: {package}\n"
        hidden = "members: false, " if names else ""  # each then has its own heading
        text += f"    options: {{{hidden}show_root_heading: false}}\n"
        text += "".join(f"\n::: {package}.{name}\n" for name in names)
        files.append(File.generated(config, f"api/{package}.md", content=text))
    return files


class Examples(griffe.Extension):
    """Renders sections `Example:` as code, which griffe does for `Examples:` alone."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in the docstring of each object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
