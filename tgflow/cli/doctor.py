"""`tgflow doctor`: check that the installation works."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict

import typer
from rich.text import Text

from tgflow.cli.errors import INTERNAL
from tgflow.cli.options import Json
from tgflow.report.table_text import print_table

COLORS = {"ok": "green", "warn": "yellow", "missing": "red"}


def doctor(json: Json = False) -> None:
    """Check this installation (versions, native core, threads, GPU) and suggest fixes.

    [bold]Examples[/bold]

      tgflow doctor
      tgflow doctor --json
    """
    from tgflow.cli.diagnosis import report

    checks = report()
    if json:
        sys.stdout.write(jsonlib.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        rows = [
            (
                check.name,
                Text(check.status, COLORS[check.status]),
                Text.assemble(check.detail, (f"\n{check.advice}" if check.advice else "", "dim")),
            )
            for check in checks
        ]
        print_table(("check", "state", "found"), rows, left=range(3))
    if any(check.status == "missing" for check in checks):
        raise typer.Exit(INTERNAL)
