"""Command-line options made from the schema of the settings, so that both say the same."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from tgflow.config import StreamConfig, fields, flag_of, load_config, stated_settings

PANELS = {
    "stream": "Stream: where events come from",
    "order": "Order: events that come late, or from several partitions",
    "checks": "Checks: which rows are events",
    "kafka": "Kafka",
    "graph": "Graph",
    "model": "Model",
    "plan": "Batches",
    "tables": "Features: where they are kept",
    "train": "Learning",
    "run": "Run",
    "checkpoint": "Checkpoints: how a run goes on after anything",
    "operate": "Operation",
}
STREAM_OF_FILES = tuple(
    f"stream.{key}"
    for key in StreamConfig.model_fields
    if key not in ("codec", "until_end", "event_id")
)
"""Settings of the stream for commands that read files only."""
ALIASES = {
    "stream.path": ("--stream", "--data"),
    "train.learning_rate": ("--learning-rate", "--lr"),
    "kafka.options": ("--kafka-option", "--options"),
}
SHORT = {"stream.path": "-s", "model.name": "-m", "run.out": "-o"}
FILE_PANEL = "Settings from a file"


def with_config(
    keys: Iterable[str],
    defaults: Mapping[str, Any] | None = None,
    positional: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--config` and one option per setting; it is called with `config=Config`.

    A command with a parameter `stated` also gets what the file and the flags say themselves.

    Args:
        keys: Settings as "section.key", or a whole section as "section".
        defaults: What this command takes where neither file nor flag says anything.
        positional: The setting that is an argument, not an option.
    """
    wanted = list(keys)
    chosen = {
        key: field
        for key, field in fields()
        if key in wanted or key.split(".", maxsplit=1)[0] in wanted
    }
    defaults = defaults or {}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(config: Path | None, **values: Any) -> None:
            flags = {key: _given(values.pop(_name(key))) for key in chosen}
            if "stated" in signature.parameters:
                values["stated"] = stated_settings(config, flags)
            command(config=load_config(config, flags, defaults), **values)

        signature = inspect.signature(command, eval_str=True)
        made = ("config", "stated")
        kept = [p for p in signature.parameters.values() if p.name not in made]
        options = [
            _argument(key, field) if key == positional else _option(key, field, defaults.get(key))
            for key, field in chosen.items()
        ]
        parameters = [*options[:1], _config_file(), *options[1:], *kept]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def help_text(command: Callable[..., None]) -> str:
    """Return a command's docstring as its help: paragraphs joined, indented lines as they are."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(
        part if part.startswith("  ") else part.replace("\n", " ") for part in paragraphs
    )


def _given(value: Any) -> Any:
    return value or None if isinstance(value, list) else value


def _name(key: str) -> str:
    return key.replace(".", "_")


def _config_file() -> inspect.Parameter:
    info = typer.Option(
        "--config", "-c", help="TOML file of settings; flags win over it.",
        exists=True, dir_okay=False, rich_help_panel=FILE_PANEL,
    )  # fmt: skip
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("config", kind, default=None, annotation=Annotated[Path | None, info])


def _argument(key: str, field: FieldInfo) -> inspect.Parameter:
    """Return the command's parameter for the setting that is its argument."""
    info = typer.Argument(metavar="PATH", help=str(field.description).rstrip("."))
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(_name(key), kind, annotation=Annotated[str, info])


def _option(key: str, field: FieldInfo, default: Any) -> inspect.Parameter:
    """Return the command's parameter for one setting; not given, it is None."""
    section = key.split(".", maxsplit=1)[0]
    default = field.default if default is None else default
    names = [*ALIASES.get(key, (flag_of(key),)), *([SHORT[key]] if key in SHORT else [])]
    plain = _plain(field.annotation)
    if plain is bool:
        names = [f"{name}/--no-{name.removeprefix('--')}" for name in names]
    info = typer.Option(
        *names,
        help=_help(field, default),
        show_default=False,
        rich_help_panel=PANELS[section],
    )
    if plain is str and int in map(_bare, typing.get_args(field.annotation)):
        info.parser = _number_or_word
    annotation: Any = Annotated[plain | None, info]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(_name(key), kind, default=None, annotation=annotation)


def _help(field: FieldInfo, default: Any) -> str:
    """Return a setting's description and default, without the command it is for."""
    text = str(field.description).rstrip(".")
    if text.startswith(("run: ", "train: ")):
        text = text.partition(": ")[2].capitalize()
    if default in (None, False, "", []):
        return text
    shown = ", ".join(default) if isinstance(default, list) else f"{default}".removesuffix(".0")
    return f"{text} [dim]({shown})[/dim]"


def _plain(annotation: Any) -> Any:
    """Return the type that the command line parses: without None, and lists as lists of texts.

    What may be a number or a word is a text, see `_number_or_word`.
    """
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        kinds = [a for a in typing.get_args(annotation) if a is not type(None)]
        annotation = kinds[0] if len(kinds) == 1 else str
    annotation = _bare(annotation)
    return list[str] if typing.get_origin(annotation) is list else annotation


def _bare(annotation: Any) -> Any:
    """Return a type without what is annotated to it."""
    if typing.get_origin(annotation) is Annotated:
        return typing.get_args(annotation)[0]
    return annotation


def _number_or_word(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
