"""The CSV files of JODIE (Kumar et al., KDD 2019) as they are published: wikipedia, reddit, ..."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mode

from tgflow.streams.files.blocks import TextFile
from tgflow.streams.files.csv import CsvDecoder, refuse_first_row, split_values
from tgflow.streams.files.text import undecodable

HEADER = b"user_id,item_id,timestamp,state_label,comma_separated_list_of_features"


class JodieDecoder(CsvDecoder):
    """Five names in the header stand for `4 + F` values a row: src, dst, t, label, f0, f1, ...

    Users and items are counted apart, both from 0: a stream of them is bipartite.

    Args:
        path: The file, compressed if its name says so.
    """

    bipartite = True

    def names(self) -> Sequence[str]:
        """Return src, dst, t, label, and one name for each further value of most first rows.

        Raises:
            StreamError: If the first line is a row.
        """
        refuse_first_row(self.name, next(iter(self.head()), b""), ",")
        widths = [len(split_values(line, ",")) for line in self.head()[1:] if not undecodable(line)]
        num_features = max(mode(widths) - 4, 0) if widths else 0
        return ["src", "dst", "t", "label", *(f"f{i}" for i in range(num_features))]

    def default_features(self) -> Sequence[str]:
        """Return f0, f1, ...: they are read unless others are asked for."""
        return self.names()[4:]


def is_jodie(path: Path) -> bool:
    """Return whether the first line of a file is JODIE's."""
    return [line.strip() for line in TextFile(path).head(1)] == [HEADER]
