"""Files with one flipped bit, and checkpoint manifests with valid digests."""

import hashlib
import json


def flip_bit(data, bit):
    """Return data with one flipped bit."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def sign_manifest(manifest):
    """Return a manifest file with a valid digest, as an attacker can compute it."""
    rest = json.dumps(manifest)[1:].encode()
    return b'{"sha256": "' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def sign_checkpoint(checkpoint, manifest):
    """Write a checkpoint's manifest with valid digests of its files as they are."""
    for name, entry in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_bytes(sign_manifest(manifest))
