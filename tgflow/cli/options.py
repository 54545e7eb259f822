"""Command-line options generated from the schema of the settings."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tgflow.base.own_code import forget, give, load
from tgflow.base.secret import check_url
from tgflow.base.setting import alternatives
from tgflow.run.config import ConfigError, Field, fields, is_unset, load_config

STREAM_OF_FILES, RANKS_IN_STEP = (
    tuple(
        field.key
        for field in fields()
        if field.key.startswith(f"{section}.") and not field.setting.live
    )
    for section in ("stream", "ranks")
)
"""Settings of file streams, and of ranks that read a whole stream before training."""
COMMON = frozenset(
    {
        *("stream.path", "stream.src", "stream.dst", "stream.t", "stream.features"),
        *("stream.time_unit", "model.name", "compare.models", "compare.seeds"),
        *("learning.batch_size", "learning.learning_rate", "scores.to", "run.out"),
        *("learning.epochs", "run.device"),
        *("config", "resume", "seeds", "json"),
    }
)
"""Settings and parameters shown by `--help` for commands with many of them."""
FILE, STREAM, HELP_ALL = "file", "stream.path", "tgflow.help_all"

_OWN = {"model.name", "compare.models", "learning.metrics"}
"""Settings whose flags, and nothing else, take code of the caller's own."""

OwnModel = Annotated[
    str | None,
    typer.Option(
        "--model", "-m",
        help="Class of the run's model if it is your own: path/to/file.py:Class, or "
        "package.module:Class",
    ),
]  # fmt: skip
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON to stdout.", rich_help_panel="Output")
]
MetricsJson = Annotated[
    bool,
    typer.Option("--json", help="Print only metrics.json to stdout.", rich_help_panel="Output"),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Resume the run in --out if it exists; otherwise start one.",
        rich_help_panel="Resuming",
    ),
]

Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace the run in --out, once the stream is open.",
        rich_help_panel="Output",
    ),
]


def with_config(
    keys: Iterable[str], positional: str | None = None, *, is_long: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--config` and one option per setting; it is called with `config=Config`.

    One that `is_long` also takes the stream as FILE, and has `--help-all`. A parameter `stated`
    of the command receives only the settings from the file and the flags.
    """
    wanted = list(keys)
    known = {f.key: f for f in fields() if not {f.key, f.key.partition(".")[0]}.isdisjoint(wanted)}
    chosen = [field for field in known.values() if not field.setting.expert]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def run(config: Path | None, **values: Any) -> None:
            values.pop("help_all", None)
            flags = {field.key: _given(field, values.pop(_name(field))) for field in chosen}
            if (file := values.pop(FILE, None)) is not None:
                if flags[STREAM] not in (None, file):
                    check_url(f"{file} {flags[STREAM]}")
                    raise ConfigError(
                        f"FILE is {file}, and --stream {flags[STREAM]}; give one of them"
                    )
                flags[STREAM] = file
            forget()
            for field in chosen:
                if field.key in _OWN and flags[field.key] is not None:
                    flags[field.key] = _own(field, flags[field.key])
            for key, value in _pairs("--set", values.pop("set"), as_json=True).items():
                if key not in known:
                    meant = difflib.get_close_matches(key, known, n=1)
                    text = f"; did you mean {meant[0]}?" if meant else ""
                    raise ConfigError(f"--set: there is no setting {key!r} here{text}")
                flags[key] = value
            stated: dict[str, Any] = {}
            found = load_config(config, flags, stated=stated)
            if "stated" in signature.parameters:
                values["stated"] = stated
            command(config=found, **values)

        config_file = typer.Option(
            "--config", "-c", help="TOML file of settings; flags override it.",
            exists=True, dir_okay=False, rich_help_panel="Settings from a file",
        )  # fmt: skip
        file = typer.Argument(metavar="FILE", help="Stream to read; same as --stream")
        options = [_option(field, is_argument=field.key == positional) for field in chosen]
        parameters = [
            *([_parameter(FILE, Annotated[str | None, file])] if is_long else []),
            *options[:1],
            _parameter("config", Annotated[Path | None, config_file]),
            _parameter("set", _SET),
            *options[1:],
            *(p for p in signature.parameters.values() if p.name not in ("config", "stated")),
            *([_parameter("help_all", Annotated[bool, _SHOW_ALL], False)] if is_long else []),
        ]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


class LongCommand(TyperCommand):
    """A command with many options: `--help` shows those in `COMMON`, `--help-all` shows all."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with uncommon options only after `--help-all`."""
        every = self.params
        if not ctx.meta.get(HELP_ALL):
            shown = {key.replace(".", "_") for key in COMMON} | {FILE, "help_all"}
            self.params = [each for each in every if each.name in shown]
        try:
            super().format_help(ctx, formatter)
        finally:
            self.params = every


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


_SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", rich_help_panel="Settings from a file",
        help="Any setting of a file, such as checks.max_abs=1e6; may be repeated",
    ),
]  # fmt: skip
_SHOW_ALL = typer.Option("--help-all", help="Show all options.", is_eager=True, callback=_show_all)


def help_text(command: Callable[..., None]) -> str:
    """Return a command's docstring as help: paragraphs joined, indented lines unchanged."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(
        part if part.startswith("  ") else part.replace("\n", " ") for part in paragraphs
    )


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option(field: Field, *, is_argument: bool) -> inspect.Parameter:
    """Return the command's parameter for one setting; its value is None if not given."""
    text, default = field.help.rstrip("."), field.default
    if is_argument:
        argument = Annotated[str, typer.Argument(metavar="PATH", help=text)]
        return _parameter(_name(field), argument, inspect.Parameter.empty)
    if not (is_unset(default) or default in (False, "", {})):
        given = ", ".join(default) if isinstance(default, tuple) else f"{default}"
        text += f" [dim]({given.removesuffix('.0')})[/dim]"
    kinds = [kind for kind, _ in alternatives(field.hint)]
    kind: Any = kinds[0] if len(kinds) == 1 else str  # a number or a word
    metavar = None
    if (origin := typing.get_origin(kind)) in (list, tuple, Mapping):
        kind = list[str]
        metavar = "KEY=VALUE" if origin is Mapping else "N,N" if _has_numbers(field) else None
    names = list(field.flags)
    if kind is bool:
        names = [f"{name}/--no-{name.removeprefix('--')}" for name in names]
    info = typer.Option(
        *names, help=text, show_default=False, rich_help_panel=field.section.title, metavar=metavar
    )
    if field.key in ("model.name", "compare.models"):
        info.autocompletion = _models
    if kind is str and int in kinds:
        info.parser = _number_or_word
    return _parameter(_name(field), Annotated[kind | None, info])


def _models(incomplete: str) -> list[str]:
    """Return the names of models that begin with `incomplete`, for the shell."""
    from tgflow.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


def _given(field: Field, value: Any) -> Any:
    """Return the value of a flag, None if it was not given; KEY=VALUE pairs as a mapping."""
    if not isinstance(value, list):
        return value
    if not value:
        return None
    if _has_numbers(field):
        return [_number_or_word(part) for text in value for part in text.split(",")]
    if not any(typing.get_origin(kind) is Mapping for kind, _ in alternatives(field.hint)):
        return value
    # Clients convert their options themselves.
    return _pairs(field.flags[0], value, as_json=field.key == "model.settings")


def _pairs(flag: str, given: list[str] | None, *, as_json: bool) -> dict[str, Any]:
    """Return KEY=VALUE pairs as a mapping, with values `as_json` or as text."""
    pairs: dict[str, Any] = {}
    for text in given or ():
        key, equals, found = text.partition("=")
        if not (equals and key.strip()):
            shown = re.match(r"\w*", text)[0]  # type: ignore[index]  # the rest may be a secret
            raise ConfigError(f"{flag}: {shown!r} is not of the form KEY=VALUE")
        pairs[key.strip()] = found.strip()
        if as_json:
            with suppress(ValueError):  # text that is not JSON stays text
                pairs[key.strip()] = json.loads(found)
    return pairs


def given_model(reference: str | None) -> Any:
    """Return the class that `OwnModel` names; None without one."""
    forget()
    try:
        return None if reference is None else load(reference)
    except ValueError as error:
        raise ConfigError(f"--model: {error}") from None


def _own(field: Field, value: Any) -> Any:
    """Return the value of a flag with the caller's classes by name; they are imported."""
    if not isinstance(value, str):
        return [_own(field, text) for text in value]
    try:
        if field.key == "compare.models":  # LABEL=NAME,NAME
            return re.sub(r"[^=,]*:[^=,]*", lambda found: give(found[0].strip()), value)
        return give(value) if ":" in value else value
    except ValueError as error:
        raise ConfigError(f"{field.flags[0]}: {error}") from None


def _has_numbers(field: Field) -> bool:
    lists = [kind for kind, _ in alternatives(field.hint) if typing.get_origin(kind) is tuple]
    return any(each is int for kind in lists for each, _ in alternatives(typing.get_args(kind)[0]))


def _name(field: Field) -> str:
    return field.key.replace(".", "_")


def _number_or_word(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
