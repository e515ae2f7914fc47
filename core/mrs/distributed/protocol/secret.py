"""The secret that both sides of a connection prove to each other.

Who dials says Hello with a nonce, who listens answers with another, then who dials proves the
secret, and at last who listens does. The proofs and the keys of all later frames are HMACs of
both first messages, under a key that scrypt makes of the secret.

The order decides who learns what. Whoever sees a proof can try guesses against it at home, so a
stranger at an open port must get none: the side that dials has chosen the address, and proves
first. Who takes that address, or listens on the way, gets one proof, and each guess against it
costs a scrypt of 32 MiB; the secrets that this program makes have 256 bits, which nobody guesses.
scrypt is done once for a secret in a process, before anybody is greeted: a greeting costs two
HMACs, so that strangers cannot keep a listener busy. Its salt is the same everywhere, because the
two sides have nothing else in common before they have met.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from mrs.errors import UsageError

VARIABLE = "MRS_CLUSTER_SECRET"
FILE_VARIABLE = "MRS_CLUSTER_SECRET_FILE"
LEAST_CHARACTERS = 16
MOST_FILE_BYTES = 4096
NONCE_BYTES = PROOF_BYTES = 32
_SALT = b"mrs cluster secret"
_BLOCK, _MEMORY_COST, _ROUNDS = 8, 1 << 15, 3
_HINT = f"put the same {LEAST_CHARACTERS} or more characters into a file of mode 0600 on each "
_HINT += f"machine, and name it in {FILE_VARIABLE} for every process"


def find_secret(host: str, variables: Mapping[str, str] = os.environ) -> bytes:
    """The secret of the variable or of the file; else, for a loopback address, that of this user.

    Raises UsageError if an address that other machines can reach has no secret, and for a secret
    that is short or that other users can read.
    """
    path, text = variables.get(FILE_VARIABLE), variables.get(VARIABLE)
    if path:
        text = _file_text(Path(path), FILE_VARIABLE)
    if text is not None and text.strip():
        return _checked(text.strip())
    if is_loopback(host):
        return own_secret()
    raise UsageError(f"other machines can reach {host}, so a secret is needed", hint=_HINT)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_secret() -> bytes:
    """The secret of this user's processes on this machine, in a file that only the user may read.

    It is made when first needed. Raises UsageError if it cannot be stored.
    """
    path = _own_file()
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(path)
    except OSError as error:
        raise UsageError(
            f"no secret for workers of this machine can be stored in {path}",
            where=error.strerror or "",
            hint=f"name a file of mode 0600 with one in {FILE_VARIABLE} for every process",
        ) from error
    return _checked(_file_text(path, "the secret of workers of this machine,").strip())


def new_secret() -> bytes:
    """A secret of 256 bits."""
    return secrets.token_hex(32).encode()


@lru_cache(maxsize=4)
def stretched(secret: bytes) -> bytes:
    """The key (32 bytes) of a secret, which takes 32 MiB and some 0.2 s to make.

    Raises UsageError for a short secret.
    """
    if len(secret) < LEAST_CHARACTERS:
        raise UsageError("a cluster needs a secret", hint=_HINT)
    return hashlib.scrypt(
        secret,
        salt=_SALT,
        n=_MEMORY_COST,
        r=_BLOCK,
        p=_ROUNDS,
        maxmem=2 * 128 * _BLOCK * _MEMORY_COST,
        dklen=32,
    )


class SessionKeys:
    """The proofs and keys of one connection, which the `transcript` of its greeting is part of."""

    def __init__(self, key: bytes, transcript: bytes) -> None:
        self._key = hmac.digest(key, transcript, "sha256")

    def derived(self, purpose: bytes) -> bytes:
        """A proof or a key; another `purpose` keeps a proof from being sent back."""
        return hmac.digest(self._key, purpose, "sha256")

    def is_proof(self, proof: bytes, role: bytes) -> bool:
        return hmac.compare_digest(proof, self.derived(role))


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def _own_file() -> Path:
    from platformdirs import user_state_path

    return user_state_path("mrs", appauthor=False) / "cluster-secret"


def _make(path: Path) -> None:
    """Write a new secret, unless another process does so at the same time. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(new_secret() + b"\n")
        with suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, this leaves a file that is there
    finally:
        temporary.unlink()


def _checked(text: str) -> bytes:
    if len(text) < LEAST_CHARACTERS:
        raise UsageError(f"the cluster's secret has only {len(text)} characters", hint=_HINT)
    return text.encode("utf-8", "surrogateescape")


def _file_text(path: Path, name: str) -> str:
    """Raises UsageError, also for a file that other users may read or write."""
    try:
        handle = os.open(path.expanduser(), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError(f"{name} {path} is not a file")
            if hasattr(os, "getuid") and stat.S_IMODE(mode) & 0o077:
                raise UsageError(f"other users may read {path}", hint=f"run: chmod 600 {path}")
            data = file.read(MOST_FILE_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name} {path} cannot be read", where=reason) from error
    if len(data) > MOST_FILE_BYTES:
        raise UsageError(f"{name} {path} is too long for a secret")
    return data.decode("utf-8", "surrogateescape")
