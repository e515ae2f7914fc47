"""Flags of the HTTP server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from typer import Argument

from mrs.errors import UsageError
from mrs_cli.parsing.flags.flags import Flags
from mrs_cli.parsing.flags.option import USUAL, Usual, server_option

#: The port of `mrs serve`; without `serve`, the port has to be given.
DEFAULT_PORT = 1234
_OF_SERVERS = Usual(("serve", "multi-model"))
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


def duration_s(text: str | None, flag: str) -> float | None:
    """Seconds of a duration; None for none, and a negative one, which is for ever. UsageError."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNIT_SECONDS else (text, "s")
    try:
        seconds = float(number) * _UNIT_SECONDS[unit]
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UsageError(f"{flag} {text} is no duration", hint="give 300, 30s, 5m, 1h or -1")
    return seconds if seconds >= 0 else None


@dataclass(init=False, eq=False, repr=False)
class ServerFlags(Flags):
    """Where the server listens, whom it answers, and its limits."""

    port: Annotated[
        int | None,
        server_option(
            "-p",
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve the model over HTTP on this port; 0 is any free one.",
        ),
        _OF_SERVERS,
    ] = None
    serve_ip: Annotated[
        str | None,
        server_option(
            "--serve-ip",
            "--host",
            metavar="ADDRESS",
            help="Address to listen on; 0.0.0.0 is every network of this machine.",
            show_default="127.0.0.1",
        ),
        _OF_SERVERS,
    ] = None
    uds: Annotated[
        str | None,
        server_option(
            "--uds",
            metavar="PATH",
            help="Listen on this Unix socket, which its owner and group may use, instead of a "
            "port.",
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        server_option(
            "--tls-cert",
            metavar="FILE",
            help="Speak HTTPS with the certificate in FILE, in PEM form, after which those follow "
            "that clients need to trust it.",
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        server_option(
            "--tls-key",
            metavar="FILE",
            help="The private key of the certificate, in PEM form and without a password.",
            show_default="in the file of --tls-cert",
        ),
    ] = None
    root_path: Annotated[
        str | None,
        server_option(
            "--root-path",
            metavar="PATH",
            help="Path under which a proxy shows the server, such as /mrs. Requests may have it "
            "before their own path or not.",
        ),
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        server_option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="Believe the headers X-Forwarded-For and X-Forwarded-Proto of a proxy at this "
            "address or network (10.0.0.0/8), or at the other end of --uds (unix). May be given "
            "several times.",
        ),
    ] = None
    api_key_file: Annotated[
        str | None,
        server_option(
            "--api-key-file",
            metavar="FILE",
            help="Answer only requests with a key from FILE, one per line; the variable "
            "MRS_API_KEY can hold one, too.",
        ),
        _OF_SERVERS,
    ] = None
    admin_key_file: Annotated[
        str | None,
        server_option(
            "--admin-key-file",
            metavar="FILE",
            help="Let only requests with one of the keys in FILE load, unload and requantize "
            "models and adapters.",
            show_default="every request that is answered; without keys, on this machine's own "
            "addresses only",
        ),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        server_option(
            "--allow-host",
            metavar="NAME",
            help="Host name that requests without a key may use, in addition to this machine's "
            "names and addresses. May be given several times.",
        ),
    ] = None
    allow_origin: Annotated[
        list[str] | None,
        server_option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Origin of web pages that may call the server, such as https://example.com; * is "
            "every one. May be given several times.",
        ),
    ] = None
    allow_image_urls: Annotated[
        bool,
        server_option("--allow-image-urls", help="Fetch images from public web addresses."),
    ] = False
    allow_load: Annotated[
        bool,
        server_option(
            "--allow-load",
            help="Let clients load any model, by hub id or path, with /v1/models/load.",
        ),
    ] = False
    allow_adapter_loading: Annotated[
        bool,
        server_option(
            "--allow-adapter-loading",
            help="Let clients load LoRA adapters, by a folder of this machine or a hub id, with "
            "/v1/load_lora_adapter.",
        ),
    ] = False
    served_model_name: Annotated[
        list[str] | None,
        server_option(
            "--served-model-name",
            metavar="NAME",
            help="Name by which clients know the model. May be given several times: the first one "
            "is in the replies.",
            show_default="the hub id, or the last part of the path",
        ),
    ] = None
    strict_model_name: Annotated[
        bool,
        server_option(
            "--strict-model-name",
            help="Refuse requests that name another model. Otherwise the only model answers them, "
            "and the header x-model says so.",
        ),
    ] = False
    keep_alive: Annotated[
        str | None,
        server_option(
            "--keep-alive",
            metavar="DURATION",
            help="Unload a model that has been idle this long: 300 (seconds), 30s, 5m or 1h; the "
            "next request loads it again. 0 unloads at once, a negative duration never.",
            show_default="never",
        ),
        _OF_SERVERS,
    ] = None
    batch_dir: Annotated[
        str | None,
        server_option(
            "--batch-dir",
            metavar="FOLDER",
            help="Keep files and batches of clients in FOLDER, and answer batches beside other "
            "requests (/v1/files, /v1/batches).",
            show_default="neither is taken",
        ),
    ] = None
    batch_dir_size: Annotated[
        str | None,
        server_option(
            "--batch-dir-size",
            metavar="SIZE",
            help="Largest size of that folder, of which each API key leaves some to others.",
            show_default="1GiB",
        ),
    ] = None
    max_queue: Annotated[
        int | None,
        server_option(
            "--max-queue",
            metavar="N",
            min=0,
            max=1024,
            help="Replies that may wait for a free sequence, and requests that may wait for a "
            "model; further requests get status 429.",
            show_default="64",
        ),
    ] = None
    max_body: Annotated[
        int | None,
        server_option(
            "--max-body",
            metavar="MIB",
            min=1,
            help="Largest body of a request in MiB.",
            show_default="50",
        ),
    ] = None
    target_inter_token_ms: Annotated[
        int | None,
        server_option(
            "--target-inter-token-ms",
            metavar="MS",
            min=1,
            help="Time between two tokens of a reply that new prompts should not exceed, in "
            "milliseconds.",
            show_default="250",
        ),
    ] = None
    request_timeout: Annotated[
        float | None,
        server_option(
            "--request-timeout",
            metavar="SECONDS",
            min=0.001,
            help="Longest time of a request, waiting included.",
            show_default="none",
        ),
    ] = None
    sse_keep_alive: Annotated[
        float | None,
        server_option(
            "--sse-keep-alive",
            metavar="SECONDS",
            min=0,
            help="Send a comment on a stream that has been silent this long, so that no proxy "
            "closes it; 0 sends none.",
            show_default="15",
        ),
    ] = None
    drain_grace: Annotated[
        float | None,
        server_option(
            "--drain-grace",
            metavar="SECONDS",
            min=0,
            help="Time after SIGTERM or Ctrl-C in which new requests are still answered, while "
            "/ready has status 503 so that a load balancer sends no more.",
            show_default="0",
        ),
    ] = None
    drain_timeout: Annotated[
        float | None,
        server_option(
            "--drain-timeout",
            metavar="SECONDS",
            min=0,
            help="Time that running replies get after that.",
            show_default="30",
        ),
    ] = None
    ray: Annotated[
        str | None,
        server_option(
            "--ray",
            metavar="ADDRESS",
            help="Let Ray place and replace replicas of the server: local starts Ray on this "
            "machine, auto or HOST:PORT names a cluster.",
        ),
    ] = None
    replicas: Annotated[
        int | None,
        server_option(
            "--replicas", metavar="N", min=1, help="Replicas under Ray.", show_default="1"
        ),
    ] = None
    max_replicas: Annotated[
        int | None,
        server_option(
            "--max-replicas",
            metavar="N",
            min=1,
            help="Start more replicas under Ray, up to so many, while their sequences are used.",
            show_default="as --replicas",
        ),
    ] = None


def refuse_without_port(flags: ServerFlags) -> None:
    """Raises UsageError for flags of the server if none is to run: --port or --uds starts one."""
    for name, value in vars(flags).items():
        if value:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for a server", hint="add --port 1234, or leave it out")


@dataclass(init=False, eq=False, repr=False)
class ModelsFlags(Flags):
    """Flags of `multi-model`."""

    config: Annotated[
        str,
        server_option(
            "-c",
            "--config",
            metavar="FILE",
            help='Models in JSON: {"NAME": {"Plain": {"model_id": ID}, "alias": NAME}}; also '
            "VisionPlain and Gguf.",
        ),
        USUAL,
    ]
    default_model_id: Annotated[
        str | None,
        server_option(
            "--default-model-id",
            metavar="ID",
            help="Model that is loaded first, and answers requests that name none.",
            show_default="the first one",
        ),
        USUAL,
    ] = None


@dataclass(init=False, eq=False, repr=False)
class RouteFlags(Flags):
    """The servers of `mrs route`, and where it listens itself."""

    servers: Annotated[
        list[str],
        Argument(
            rich_help_panel="Server",
            metavar="URL [URL]...",
            help="The servers, such as http://10.0.0.5:1234, that serve the same model.",
        ),
        USUAL,
    ]
    port: Annotated[
        int,
        server_option(
            "-p",
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Listen on this port; 0 is any free one.",
        ),
        USUAL,
    ] = DEFAULT_PORT + 1
    serve_ip: Annotated[
        str,
        server_option(
            "--serve-ip",
            "--host",
            metavar="ADDRESS",
            help="Address to listen on; 0.0.0.0 is every network of this machine.",
            show_default="127.0.0.1",
        ),
        USUAL,
    ] = "127.0.0.1"
    max_body: Annotated[
        int,
        server_option(
            "--max-body", metavar="MIB", min=1, help="Largest body of a request, in MiB."
        ),
    ] = 64
