"""Which section of the settings belongs to the transport of an address."""

from __future__ import annotations

from typing import Any

from tgflow.config import Config
from tgflow.streams.transports import scheme_of


def section_of(config: Config, address: str) -> Any:
    """Return the section named like the scheme of `address`; None for a path, or without one."""
    scheme = scheme_of(address)
    return None if scheme is None else getattr(config, scheme, None)
