"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from mrs.process.request_memory import CONNECTION_BYTES, TLS_CONNECTION_BYTES


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, whom it answers, and its limits.

    api_keys            the accepted keys; with none, everybody who reaches the port is answered
    admin_keys          the keys that may also change which models there are, and how quantized;
                        with none, every client may that needs a key or is of this machine
    allowed_hosts       host names, apart from this machine's own, that requests may name
    allowed_origins     origins of web pages that may call the server; `*` is every origin
    allow_image_urls    whether images may be fetched from public web addresses
    allow_load          whether clients may load models that the server was not started with
    allow_adapters      whether clients may load LoRA adapters, also from folders of this machine
    strict_names        whether the only model answers no request that names another one
    keep_alive_s        how long a model stays loaded that nobody uses; None is for ever
    max_queue           requests that may wait for a free sequence, for a model, or, with so many
                        as can run, until their texts are read
    max_connections     open connections; half of the process's file descriptors if that is less,
                        and with TLS as many as need the same memory
    max_body_bytes      the largest body of a request
    request_timeout_s   how long a reply may take, waiting included; None is no limit
    read_timeout_s      how long a client may take to send a head, to send a body (longer if that
                        comes fast enough, see http/pace.py), or to read some of a reply
    sse_keep_alive_s    how long a stream may be silent before it gets a comment; 0 sends none
    drain_grace_s       how long after the first signal new requests are still answered, while
                        `/ready` says that the server stops
    drain_timeout_s     how long running replies may take after SIGTERM or Ctrl-C
    tls_cert, tls_key   PEM files of a certificate, with those that it needs, and of its key
    root_path           what a proxy puts before all paths, such as `/mrs`; empty is nothing
    trusted_proxies     addresses, networks, or `unix`, whose X-Forwarded headers are believed
    batch_folder        where files and batches of clients are kept; without one there are none
    batch_folder_bytes  what these files may take
    """

    port: int = 0
    host: str = "127.0.0.1"
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allow_image_urls: bool = False
    allow_load: bool = False
    allow_adapters: bool = False
    strict_names: bool = False
    keep_alive_s: float | None = None
    max_queue: int = 64
    max_connections: int = 1024
    max_body_bytes: int = 50 * 2**20
    request_timeout_s: float | None = None
    read_timeout_s: float = 60.0
    sse_keep_alive_s: float = 15.0
    drain_grace_s: float = 0.0
    drain_timeout_s: float = 30.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()
    batch_folder: Path | None = None
    batch_folder_bytes: int = 2**30

    @property
    def open_connections(self) -> int:
        if self.tls_cert is None:
            return self.max_connections
        return max(self.max_connections * CONNECTION_BYTES // TLS_CONNECTION_BYTES, 1)

    @property
    def is_public(self) -> bool:
        """Whether other machines can reach the server."""
        if self.trusted_proxies:
            return True
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"
