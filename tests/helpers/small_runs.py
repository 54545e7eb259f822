"""Options that keep a run of the command line small."""

SMALL = ("--dim", 8, "--neighbors", 3, "--batch-size", 50, "--threads", 1)
