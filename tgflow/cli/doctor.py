"""`tgflow doctor`: check that the installation works."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tgflow.cli.errors import INTERNAL

COLORS = {"ok": "green", "warn": "yellow", "missing": "red"}


def doctor(
    json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON to stdout.", rich_help_panel="Output"),
    ] = False,
) -> None:
    """Check this installation: versions, the native core, threads, GPU; say what to do if not.

    [bold]Examples[/bold]

      tgflow doctor
      tgflow doctor --json
    """
    from tgflow.doctor import report

    checks = report()
    if json:
        sys.stdout.write(jsonlib.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        table = Table.grid(padding=(0, 2))
        for check in checks:
            advice = f"\n[dim]{check.advice}[/dim]" if check.advice else ""
            color = COLORS[check.status]
            table.add_row(check.name, f"[{color}]{check.status}[/{color}]", check.detail + advice)
        Console(highlight=False).print(table)
    if any(check.status == "missing" for check in checks):
        raise typer.Exit(INTERNAL)
