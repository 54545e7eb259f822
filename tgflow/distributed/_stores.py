"""The stores of `torch.distributed`, which it exports, and its types do not."""

from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    Store,
    TCPStore,
)

__all__ = ["PrefixStore", "Store", "TCPStore"]
