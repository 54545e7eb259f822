"""What the tests of crash states share."""

import os

from helpers.crash_states import crash_states
from helpers.effort import IS_QUICK
from tgflow.durable.fs import RealFs


class Quick(RealFs):
    """What is only looked at need not be on the disk."""

    def sync(self, fd):
        pass

    def sync_directory(self, path):
        pass

    def truncate(self, path, size):
        os.truncate(path, size)


def of(state, kind):
    """Return the numbers noted as `kind`, as in "synced 3"."""
    return [int(note.split()[1]) for note in state.notes if note.startswith(kind)]


def explore(fs, check, directory, known=0):
    """Check every state in which more than the first `known` things were noted; their number.

    A quick run checks every fourth.
    """
    count = 0
    for state in crash_states(fs):
        if len(state.notes) < known:
            continue
        count += 1
        if IS_QUICK and count % 4 != 1:
            continue
        state.write_to(directory)
        try:
            check(state, directory)
        except Exception as error:
            error.add_note(state.describe())
            raise
    return count
