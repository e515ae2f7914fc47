"""The variables that tell mistral.rs of several processes, with its names and fields.

| variable                          | meaning                                                 |
| --------------------------------- | ------------------------------------------------------- |
| `MISTRALRS_NO_NCCL=1`             | processes get whole layers instead of shards            |
| `MISTRALRS_MN_LOCAL_WORLD_SIZE`   | alone: processes of this machine that share layers      |
| `MISTRALRS_MN_GLOBAL_WORLD_SIZE`  | processes of all machines, which get whole layers       |
| `MISTRALRS_MN_HEAD_NUM_WORKERS`   | on the coordinator: machines to wait for                |
| `MISTRALRS_MN_HEAD_PORT`          | on the coordinator: where they join, on all addresses   |
| `MISTRALRS_MN_WORKER_SERVER_ADDR` | on a worker: the coordinator's address, IP:PORT         |
| `MISTRALRS_MN_WORKER_ID`          | on a worker: its index, from 0                          |
| `RING_CONFIG`                     | path of a JSON file with rank and addresses (see below) |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mrs.errors import NotReadable, Unsupported, UsageError, described
from mrs.process.files import read_at_most
from mrs.request import ClusterRequest

NO_SHARDS = "MISTRALRS_NO_NCCL"
_MULTI_NODE = "MISTRALRS_MN_"
LOCAL_SIZE, GLOBAL_SIZE = f"{_MULTI_NODE}LOCAL_WORLD_SIZE", f"{_MULTI_NODE}GLOBAL_WORLD_SIZE"
_HEAD_WORKERS, _HEAD_PORT = f"{_MULTI_NODE}HEAD_NUM_WORKERS", f"{_MULTI_NODE}HEAD_PORT"
_SERVER, _WORKER_ID = f"{_MULTI_NODE}WORKER_SERVER_ADDR", f"{_MULTI_NODE}WORKER_ID"
RING = "RING_CONFIG"
#: A larger file is none of a ring.
MAX_CONFIG_BYTES = 64 * 1024
#: One of them says that this process belongs to several machines.
SEVERAL_MACHINES = (GLOBAL_SIZE, RING)
_ALL_ADDRESSES = "0.0.0.0"


class PeerRole(NamedTuple):
    """What this process is: coordinator of a `cluster`, or worker `rank` of that at `address`."""

    cluster: ClusterRequest | None = None
    address: str = ""
    rank: int = 0


def may_shard_layers(variables: Mapping[str, str]) -> bool:
    """Whether processes may have shards of layers; otherwise each gets whole layers."""
    return variables.get(NO_SHARDS) != "1"


def local_ranks(variables: Mapping[str, str]) -> int | None:
    """The processes of this machine that share layers, if a variable says so. Raises UsageError."""
    if GLOBAL_SIZE in variables or not variables.get(LOCAL_SIZE, "").strip():
        return None
    return _count(variables, LOCAL_SIZE)


def peer_role(variables: Mapping[str, str]) -> PeerRole | None:
    """The place among several machines that variables give this process; None if none do.

    Raises UsageError, Unsupported and NotReadable.
    """
    if variables.get(RING):
        return _ring_role(variables[RING])
    if GLOBAL_SIZE in variables:
        return _multi_node_role(variables)
    return None


def _multi_node_role(variables: Mapping[str, str]) -> PeerRole:
    if variables.get(LOCAL_SIZE) and _count(variables, LOCAL_SIZE) > 1:
        raise Unsupported(
            "several processes on each of several machines are not supported yet",
            where=LOCAL_SIZE,
            hint="set it to 1",
        )
    if _SERVER in variables:
        return PeerRole(None, variables[_SERVER].strip(), _count(variables, _WORKER_ID, 0) + 1)
    ranks, workers = _count(variables, GLOBAL_SIZE), _count(variables, _HEAD_WORKERS)
    if ranks != workers + 1:
        raise UsageError(
            f"{GLOBAL_SIZE}={ranks} and {_HEAD_WORKERS}={workers} contradict each other",
            hint="with one process on each machine, the first is one more than the second",
        )
    listen = f"{_ALL_ADDRESSES}:{_count(variables, _HEAD_PORT)}"
    return PeerRole(ClusterRequest(wait_for=workers, listen=listen))


def _count(variables: Mapping[str, str], name: str, least: int = 1) -> int:
    text = variables.get(name, "").strip()
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise UsageError(
            f"{name}={text!r} is not a number from {least} on" if text else f"{name} is not set",
            hint=f"set it, or unset all variables that begin with {_MULTI_NODE}",
        )
    return int(text)


def _ring_role(path: str) -> PeerRole:
    """`master_ip`, `master_port`, `rank` and `world_size` count; others are for a ring of TCP."""
    config = _ring_config(path)
    rank, world = _field(config, path, "rank", 0), _field(config, path, "world_size", 2)
    port, host = _field(config, path, "master_port", 1), config.get("master_ip")
    if rank >= world or (rank and not isinstance(host, str)):
        raise UsageError(
            f"rank {rank} of {world} with the master_ip {described(host)} makes no sense",
            where=path,
            hint="ranks are from 0 to world_size - 1, and all but 0 need a master_ip",
        )
    if rank:
        return PeerRole(None, f"{host}:{port}", rank)
    return PeerRole(ClusterRequest(wait_for=world - 1, listen=f"{host or _ALL_ADDRESSES}:{port}"))


def _ring_config(path: str) -> dict[str, Any]:
    try:
        config = json.loads(read_at_most(Path(path).expanduser(), MAX_CONFIG_BYTES))
    except (OSError, ValueError, RuntimeError) as error:  # RecursionError is one, too
        reason = getattr(error, "strerror", None) or str(error)
        raise NotReadable(f"{RING} {path} cannot be read", where=reason) from error
    if not isinstance(config, dict):
        raise NotReadable(f"{RING} {path} is not a JSON object")
    return config


def _field(config: Mapping[str, Any], path: str, name: str, least: int) -> int:
    value = config.get(name)
    if type(value) is not int or value < least:
        problem = f"has no {name}" if value is None else f"has the {name} {described(value)}"
        raise UsageError(f"{path} {problem}", where=RING, hint=f"expected a number from {least} on")
    return value
