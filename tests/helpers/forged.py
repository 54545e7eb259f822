"""Files with one bit changed, and manifests of checkpoints with digests that are right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def flip_bit(data: bytes, bit: int) -> bytes:
    """Return data with one of its bits changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def sign_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest's file: an attacker can compute its digest as well."""
    rest = json.dumps(manifest)[1:].encode()
    return b'{"sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest
