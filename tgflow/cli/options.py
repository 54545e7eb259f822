"""Command-line options made from the schema of the settings, so that both say the same."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tgflow.config import ConfigError, Field, fields, is_unset, load_config, stated_settings
from tgflow.config.model import parse_value
from tgflow.setting import alternatives

STREAM_OF_FILES, RANKS_IN_STEP = (
    tuple(
        field.key
        for field in fields()
        if field.key.startswith(f"{section}.") and not field.setting.live
    )
    for section in ("stream", "ranks")
)
"""Settings of the stream for commands that read files only, and of the ranks for those that do not
learn a stream as it comes."""
COMMON = frozenset(
    {
        *("stream.path", "stream.src", "stream.dst", "stream.t", "stream.features"),
        *("stream.time_unit", "model.name", "compare.models", "compare.seeds", "compare.protocol"),
        *("continual.batch_size", "continual.learning_rate", "scores.to", "run.out"),
        *("offline.protocol", "offline.epochs", "run.device"),
        *("config", "resume", "seeds", "json"),
    }
)
"""Settings, and parameters of commands, that `--help` shows where a command has many."""
FILE_PANEL = "Settings from a file"
FILE, STREAM = "file", "stream.path"


def with_config(
    keys: Iterable[str],
    positional: str | None = None,
    *,
    takes_file: bool = False,
    has_help_all: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--config` and one option per setting; it is called with `config=Config`.

    A command with a parameter `stated` also gets what the file and the flags say themselves.

    Args:
        keys: Settings as "section.key", or a whole section as "section".
        positional: The setting that is an argument, not an option.
        takes_file: Whether the stream may be an argument instead of an option.
        has_help_all: Whether to add `--help-all`, for a `LongCommand`.
    """
    wanted = list(keys)
    chosen = [
        field
        for field in fields()
        if (field.key in wanted or field.key.partition(".")[0] in wanted)
        and not field.setting.expert
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(config: Path | None, **values: Any) -> None:
            values.pop("help_all", None)
            flags = {field.key: _given(field, values.pop(_name(field))) for field in chosen}
            if (file := values.pop(FILE, None)) is not None:
                flags[STREAM] = _one_stream(file, flags[STREAM])
            if "stated" in signature.parameters:
                values["stated"] = stated_settings(config, flags)
            command(config=load_config(config, flags), **values)

        signature = inspect.signature(command, eval_str=True)
        made = ("config", "stated")
        kept = [p for p in signature.parameters.values() if p.name not in made]
        options = [
            _argument(field) if field.key == positional else _option(field) for field in chosen
        ]
        if has_help_all:
            kept.append(_help_all())
        files = [_file()] if takes_file else []
        parameters = [*files, *options[:1], _config_file(), *options[1:], *kept]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


class LongCommand(TyperCommand):
    """A command with many options: `--help` shows those in `COMMON`, `--help-all` shows all."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, without what is not common unless all is wanted."""
        shown = {key.replace(".", "_") for key in COMMON} | {FILE, "help_all", "help"}
        is_whole = ctx.meta.get(HELP_ALL, False)
        hidden = [] if is_whole else [x for x in self.params if x.name not in shown]
        changed = [x for x in hidden if not getattr(x, "hidden", False)]
        for each in changed:
            each.hidden = True  # type: ignore[attr-defined]
        try:
            super().format_help(ctx, formatter)
        finally:
            for each in changed:
                each.hidden = False  # type: ignore[attr-defined]


HELP_ALL = "tgflow.help_all"


def _help_all() -> inspect.Parameter:
    def show(context: typer.Context, wanted: bool) -> None:
        if wanted:
            context.meta[HELP_ALL] = True
            typer.echo(context.get_help())
            raise typer.Exit

    info = typer.Option("--help-all", help="Show all options.", is_eager=True, callback=show)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("help_all", kind, default=False, annotation=Annotated[bool, info])


def help_text(command: Callable[..., None]) -> str:
    """Return a command's docstring as its help: paragraphs joined, indented lines as they are."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(
        part if part.startswith("  ") else part.replace("\n", " ") for part in paragraphs
    )


def _given(field: Field, value: Any) -> Any:
    """Return what a flag says, None if it was not given; KEY=VALUE pairs as a mapping."""
    if not isinstance(value, list):
        return value
    if not value:
        return None
    if _is_list_of_numbers(field):
        return [_number_or_word(part) for text in value for part in text.split(",")]
    return _pairs(field, value) if _is_mapping(field) else value


def _pairs(field: Field, texts: list[str]) -> dict[str, Any]:
    """Return pairs such as "api_version=[2, 3]"; values are JSON where they can be."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise ConfigError(f"{field.flags[0]}: {text!r} is not of the form KEY=VALUE")
        pairs[key.strip()] = parse_value(value.strip())
    return pairs


def _is_mapping(field: Field) -> bool:
    return any(typing.get_origin(kind) is Mapping for kind, _ in alternatives(field.hint))


def _is_list_of_numbers(field: Field) -> bool:
    lists = [kind for kind, _ in alternatives(field.hint) if typing.get_origin(kind) is tuple]
    return any(each is int for kind in lists for each, _ in alternatives(typing.get_args(kind)[0]))


def _name(field: Field) -> str:
    return field.key.replace(".", "_")


def _config_file() -> inspect.Parameter:
    info = typer.Option(
        "--config", "-c", help="TOML file of settings; flags override it.",
        exists=True, dir_okay=False, rich_help_panel=FILE_PANEL,
    )  # fmt: skip
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("config", kind, default=None, annotation=Annotated[Path | None, info])


def _one_stream(file: str, stated: str | None) -> str:
    """Return the stream that an argument names, and perhaps a flag too.

    Raises:
        ConfigError: If they name two.
    """
    if stated not in (None, file):
        raise ConfigError(f"FILE is {file}, and --stream {stated}; give one of them")
    return file


def _file() -> inspect.Parameter:
    info = typer.Argument(metavar="FILE", help="Stream to read; same as --stream")
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(FILE, kind, default=None, annotation=Annotated[str | None, info])


def _argument(field: Field) -> inspect.Parameter:
    """Return the command's parameter for the setting that is its argument."""
    info = typer.Argument(metavar="PATH", help=field.help.rstrip("."))
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(_name(field), kind, annotation=Annotated[str, info])


def _option(field: Field) -> inspect.Parameter:
    """Return the command's parameter for one setting; not given, it is None."""
    plain = _plain(field)
    names = list(field.flags)
    if plain is bool:
        names = [f"{name}/--no-{name.removeprefix('--')}" for name in names]
    info = typer.Option(
        *names,
        help=_help(field),
        show_default=False,
        rich_help_panel=field.section.title,
        metavar=_metavar(field),
    )
    if plain is str and any(kind is int for kind, _ in alternatives(field.hint)):
        info.parser = _number_or_word
    annotation: Any = Annotated[plain | None, info]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(_name(field), kind, default=None, annotation=annotation)


def _metavar(field: Field) -> str | None:
    if _is_mapping(field):
        return "KEY=VALUE"
    return "N,N" if _is_list_of_numbers(field) else None


def _help(field: Field) -> str:
    """Return a setting's description and default."""
    text, default = field.help.rstrip("."), field.default
    if is_unset(default) or default in (False, "", {}):
        return text
    shown = ", ".join(default) if isinstance(default, tuple) else f"{default}".removesuffix(".0")
    return f"{text} [dim]({shown})[/dim]"


def _plain(field: Field) -> Any:
    """Return the type that the command line parses: lists and pairs as lists of texts.

    What may be a number or a word is a text, see `_number_or_word`.
    """
    kinds = [kind for kind, _ in alternatives(field.hint)]
    if len(kinds) > 1:
        return str
    origin = typing.get_origin(kinds[0])
    if origin in (list, tuple, Mapping):
        return list[str]
    return kinds[0]


def _number_or_word(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
