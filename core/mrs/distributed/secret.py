"""The secret that both sides of a connection prove to each other."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from mrs.errors import UsageError

VARIABLE = "MRS_CLUSTER_SECRET"
FILE_VARIABLE = "MRS_CLUSTER_SECRET_FILE"
LEAST_BYTES = 16
NONCE_BYTES = PROOF_BYTES = 32
_HINT = f"put the same {LEAST_BYTES} or more characters into a file of mode 0600 on each machine, "
_HINT += f"and name it in {FILE_VARIABLE}"


def find_secret(host: str, variables: Mapping[str, str] = os.environ) -> bytes:
    """The secret of the variable or of the file; empty if none is given for a loopback address.

    Raises UsageError if an address that other machines can reach has no secret, and for a secret
    that is short or that other users can read.
    """
    path, text = variables.get(FILE_VARIABLE), variables.get(VARIABLE)
    if path:
        text = _file_text(path)
    if text is None or not text.strip():
        if is_loopback(host):
            return b""
        raise UsageError(f"other machines can reach {host}, so a secret is needed", hint=_HINT)
    secret = text.strip().encode("utf-8", "surrogateescape")
    if len(secret) < LEAST_BYTES:
        raise UsageError(f"the cluster's secret has only {len(secret)} bytes", hint=_HINT)
    return secret


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _file_text(path: str) -> str:
    try:
        file = Path(path).expanduser()
        if hasattr(os, "getuid") and stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise UsageError(f"other users may read {path}", hint=f"run: chmod 600 {path}")
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{FILE_VARIABLE} {path} cannot be read", where=reason) from error


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    """What only one who knows the secret can say; `role` keeps a proof from being sent back."""
    key = hashlib.sha256(b"mrs cluster " + secret).digest()
    return hmac.digest(key, role + b"\0" + transcript, "sha256")


def is_proof(given: bytes, secret: bytes, role: bytes, transcript: bytes) -> bool:
    return hmac.compare_digest(given, proof(secret, role, transcript))
