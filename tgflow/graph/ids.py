"""Maps a stream's node ids, integers or strings, to dense ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from tgflow.base import _native
from tgflow.base.choices import Side
from tgflow.base.describe import described
from tgflow.base.units import INT64_MIN
from tgflow.graph.id_columns import IdColumn, Ids, Kind, id_column, read_ids

ERASED, ERASED_NUMBER = "\x1aerased", INT64_MIN
"""Original id of the node that the events of erased nodes are of, text or integer. Of other erased
nodes: the text continues, or the integer is a little above."""
_ERASED_BELOW = ERASED_NUMBER + (1 << 32)


@described
class NodeIds:
    """Maps ids of one kind, integers or strings, to 0, 1, 2, ... in order of first appearance.

    The first ids determine the kind. Integers are any int64; strings differ by their UTF-8
    bytes, and the empty string is a valid id. Any number of threads may look up ids
    while one encodes.

    Args:
        bipartite: Whether sources and destinations have separate id spaces: source 7 and
            destination 7 are then two nodes. Both share one range of dense ids.

    Example:
        >>> ids = tg.NodeIds()
        >>> src, dst = ids.encode(["ann", "bob"], ["cy", "ann"])
        >>> src.tolist(), dst.tolist(), ids.decode(torch.tensor([2]))
        ([0, 2], [1, 0], ['bob'])
    """

    def __init__(self, bipartite: bool = False) -> None:
        self.bipartite = bipartite
        self._map: _native.IntIdMap | _native.StringIdMap | None = None
        self._folder: str | None = None
        self.files: dict[str, dict[int, tuple[int, int]]] = {}
        """The files that hold items instead of memory, by column, as `EventLog.files`."""

    def __len__(self) -> int:
        return 0 if self._map is None else len(self._map)

    def _facts(self) -> dict[str, object]:
        return {"num_ids": len(self), "kind": self._kind(), "bipartite": self.bipartite}

    def encode(self, src: Ids, dst: Ids) -> tuple[Tensor, Tensor]:
        """Return the dense ids of both ends of edges, assigning new ones to unseen ids.

        Args:
            src: The sources' ids: a pyarrow array, a numpy array, a list, or a tensor of integers.
            dst: The destinations' ids, as many as `src`.

        Returns:
            Two int64 tensors `[B]`. New ids are numbered in the order
            `src[0], dst[0], src[1], dst[1], ...`; without edges nothing changes.

        Raises:
            ValueError: If the lengths differ, an id is missing, or an integer exceeds int64.
            TypeError: If ids are neither integers nor strings, or not of the map's kind.
                Either way the map is unchanged.
        """
        sources, targets = id_column(src, "src"), id_column(dst, "dst")
        if sources.size != targets.size:
            raise ValueError(
                f"src and dst must have one length, got {sources.size} and {targets.size}"
            )
        src_out = torch.empty(sources.size, dtype=torch.int64)
        dst_out = torch.empty_like(src_out)
        if sources.size == 0:
            return src_out, dst_out
        kind = self._kind() or sources.kind
        _check_kind(sources, kind, "src")
        _check_kind(targets, kind, "dst")
        if self._map is None:
            maps = _native.IntIdMap if kind == "integers" else _native.StringIdMap
            self._map = maps(self.bipartite)
            self.hold_index_in(self._folder)
        self._map.encode(sources.parts, targets.parts, src_out, dst_out)
        return src_out, dst_out

    def hold_index_in(self, folder: str | None) -> None:
        """Hold the table that finds ids in a file of a folder, without a name, once it is large.

        It is made again from the ids when these are loaded.

        Raises:
            OSError: If the folder has no room. `encode` raises it, too; the ids before are then in
                the map, and a later call goes on.
        """
        self._folder = folder
        if self._map is not None and folder is not None:
            self._map.hold_index_in(folder)

    def read(self, column: Any) -> pa.Array:
        """Return a file's column of ids in the kind of the map; see `read_ids`."""
        return read_ids(column, self._kind() or "strings")

    def find(self, ids: Ids, side: Side = "src") -> Tensor:
        """Return the dense id of each id, or -1 for an unseen one; does not change the map.

        Args:
            ids: Ids as in `encode`.
            side: The id space to search; used by a bipartite map only.

        Returns:
            int64 `[len(ids)]`.

        Raises:
            ValueError: If an id is missing or exceeds int64, or `side` is invalid.
            TypeError: If ids are neither integers nor strings, or not of the map's kind.
        """
        if side not in ("src", "dst"):
            raise ValueError(f'side must be "src" or "dst", got {side!r}')
        column = id_column(ids, "ids")
        out = torch.full((column.size,), -1, dtype=torch.int64)
        kind = self._kind()
        if self._map is None or kind is None or column.size == 0:
            return out
        _check_kind(column, kind, "ids")
        self._map.find(column.parts, side == "dst", out)
        return out

    def decode(self, dense: Tensor) -> list[int] | list[str]:
        """Return the original id of each dense id.

        Args:
            dense: int64 `[Q]`, each in `[0, len(self))`, in any order.

        Raises:
            IndexError: If a dense id does not exist; the message has the first one.
        """
        if dense.dtype != torch.int64 or dense.dim() != 1:
            raise ValueError(f"dense must be int64 [Q], got {dense.dtype} {list(dense.shape)}")
        nodes = dense.cpu().contiguous()
        if isinstance(self._map, _native.StringIdMap):
            offsets = torch.empty(len(nodes) + 1, dtype=torch.int64)
            self._map.decode_offsets(nodes, offsets)
            data = torch.empty(int(offsets[-1]), dtype=torch.uint8)
            self._map.decode_bytes(nodes, data)
            buffers = [None, pa.py_buffer(offsets.numpy()), pa.py_buffer(data.numpy())]
            strings: list[str]
            strings = pa.Array.from_buffers(pa.large_string(), len(nodes), buffers).to_pylist()
            return strings
        out = torch.empty_like(nodes)
        (self._map or _native.IntIdMap(self.bipartite)).decode(nodes, out)
        return out.tolist()

    def state_dict(self, num: int | None = None, start: int = 0) -> dict[str, Tensor]:
        """Return the state for `load_state_dict`, as tensors that share no memory with the map.

        Thread-safe, also while another thread encodes.

        Args:
            num: Number of ids to return, those with the lowest dense ids. None returns all.
            start: Leave out the dense ids below, for `extend`.

        Returns:
            Integers are `keys`, int64 `[N]`; strings are `offsets`, int64 `[N + 1]`, into `bytes`,
            uint8. A bipartite map adds `sides`, uint8 `[N]`, 1 for a destination.

        Raises:
            ValueError: If the map has fewer ids than `num`, or `num` is negative.
        """
        if num is not None and not 0 <= num <= len(self):
            raise ValueError(f"num must be from 0 to {len(self)}, the ids there are, got {num}")
        before = self.columns(start)
        state = {
            name: self.items(name, before[name], size) for name, size in self.columns(num).items()
        }
        if "ends" in state:
            ends = state.pop("ends") - before["bytes"]
            state["offsets"] = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replace the map by the one that returned `state`, including whether it is bipartite.

        Raises:
            ValueError: If `state` is invalid: a wrong dtype or length, or a duplicate id.
                The map is unchanged.
        """
        restored = NodeIds("sides" in state)
        restored.extend(state)
        self.replace(restored)

    @property
    def has_erased(self) -> bool:
        """Whether nodes were erased."""
        return any(self._in_place(side) >= 0 for side in get_args(Side))

    def without_erased(self, nodes: Tensor) -> Tensor:
        """Return the dense ids, int64 `[N]`, of nodes that were not erased."""
        if not self.has_erased:
            return nodes
        kept = [
            not (each.startswith(ERASED) if isinstance(each, str) else each < _ERASED_BELOW)
            for each in self.decode(nodes)
        ]
        return nodes[kept]

    def _in_place(self, side: Side) -> int:
        """Return the dense id in place of erased nodes, as in `find`; -1 without any."""
        return int(self.find([ERASED_NUMBER if self._kind() == "integers" else ERASED], side))

    def erase(self, nodes: Tensor) -> tuple[int, int] | None:
        """Erase the original ids of nodes, int64 `[N]`, which stay assigned.

        A node that comes with such an id is a new one.

        Returns:
            Dense ids in place of sources and destinations that are erased; None without any.
        """
        is_number = self._kind() == "integers"
        erased: Any = ERASED_NUMBER if is_number else ERASED
        texts: dict[int, Any] = {}
        for side in get_args(Side)[: 1 + self.bipartite]:
            sides = self.items("sides", 0, len(self))[nodes] if self.bipartite else nodes * 0
            own = nodes[sides == (side == "dst")].tolist()
            first = own[:1] if self._in_place(side) < 0 else []
            texts |= dict.fromkeys(first, erased)
            for node in own[len(first) :]:
                texts[node] = erased + 1 + node if is_number else f"{erased} {node}"
        if not texts:
            return None
        self._rename(texts)
        src, dst = self.encode([erased], [erased])
        return int(src), int(dst)

    def _rename(self, texts: Mapping[int, Any]) -> None:
        state, nodes = self.state_dict(), sorted(texts)
        if "keys" in state:
            state["keys"][nodes] = torch.tensor([texts[node] for node in nodes])
        elif nodes:
            buffers = [None, *(pa.py_buffer(state[name].numpy()) for name in ("offsets", "bytes"))]
            column = pa.Array.from_buffers(pa.large_string(), len(self), buffers)
            mask = np.isin(np.arange(len(self)), nodes)
            named = pa.array([texts[node] for node in nodes], pa.large_string())
            _, ends, data = pc.replace_with_mask(column, pa.array(mask), named).buffers()
            offsets = np.frombuffer(ends, np.int64)[: len(self) + 1]
            state["offsets"] = torch.from_numpy(offsets.copy())
            state["bytes"] = torch.from_numpy(np.frombuffer(data, np.uint8)[: offsets[-1]].copy())
        self.load_state_dict(state)

    def replace(self, other: NodeIds) -> None:
        """Replace the map by another, which must not change afterwards."""
        self.bipartite, self._map, self.files = other.bipartite, other._map, other.files
        self.hold_index_in(self._folder)

    def extend(self, state: dict[str, Tensor]) -> None:
        """Add the next ids, from a `state_dict` of them alone.

        Raises:
            ValueError: If `state` is invalid, as in `load_state_dict`; ids before a duplicate are
                then in the map.
        """
        sides = state.get("sides", torch.empty(0, dtype=torch.uint8)).contiguous()
        if "keys" in state:
            ints = _native.IntIdMap(self.bipartite) if self._map is None else self._map
            ints.restore((state["keys"].contiguous(), None), sides)
            self._map = ints
        elif "offsets" in state and "bytes" in state:
            strings = _native.StringIdMap(self.bipartite) if self._map is None else self._map
            strings.restore((state["offsets"].contiguous(), state["bytes"].contiguous()), sides)
            self._map = strings

    def columns(self, num: int | None = None) -> dict[str, int]:
        """Return the sizes of the columns of the first `num` ids, for `items`; None: of all.

        Integers have `keys`; strings `ends`, which are the byte after each one, and `bytes`. A
        bipartite map has `sides`, 1 for a destination.
        """
        num = len(self) if num is None else num
        sizes: dict[str, int] = {}
        if self._kind() == "integers":
            sizes["keys"] = num
        elif self._kind() == "strings":
            sizes["ends"] = num
            sizes["bytes"] = int(self.items("ends", num - 1, num)) if num else 0
        if self.bipartite:
            sizes["sides"] = num
        return sizes

    def items(self, name: str, start: int, stop: int) -> Tensor:
        """Return copies of items `[start, stop)` of a column, int64 or uint8. Thread-safe.

        Raises:
            IndexError: If the column has fewer items.
        """
        dtype = torch.int64 if name in ("keys", "ends") else torch.uint8
        out = torch.empty(stop - start, dtype=dtype)
        if self._map is not None:
            self._map.copy(getattr(_native.IdColumn, name), start, out)
        return out

    def map_file(
        self, name: str, start: int, stop: int, descriptor: int, offsets: Mapping[str, int]
    ) -> bool:
        """Hold items `[start, stop)` of a column in a file, not memory, as `EventLog.map_file`."""
        column = getattr(_native.IdColumn, name)
        return (
            self._map is not None
            and name in offsets
            and self._map.map_file(column, start, stop, descriptor, offsets[name])
        )

    def _kind(self) -> Kind | None:
        if self._map is None:
            return None
        return "integers" if isinstance(self._map, _native.IntIdMap) else "strings"


def _check_kind(column: IdColumn, kind: Kind, name: str) -> None:
    if column.kind != kind:
        raise TypeError(
            f"{name} holds {column.kind} but this map's ids are {kind}; "
            f"give all ids as one kind, or use one map for each"
        )
