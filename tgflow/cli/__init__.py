"""The command line."""


def main() -> None:
    """Run the `tgflow` command."""
    raise SystemExit("not yet")
