"""`mrs route`: one address for several servers of the same model."""

from __future__ import annotations

from urllib.parse import urlsplit

from mrs.errors import Unsupported, UsageError
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.flags.server_flags import RouteFlags
from mrs_cli.render.error_lines import say


def route(environment: Environment, output: OutputFlags, flags: RouteFlags) -> None:
    """Route requests until the process is told to stop. Raises UsageError and Unsupported."""
    for url in flags.servers:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url} is no address of a server", hint="give http://HOST:PORT")
    try:
        from mrs.routing.front import FrontLimits
        from mrs.routing.proxy import Proxy, serve
    except ImportError as error:
        if error.name != "httpx":
            raise
        raise Unsupported("mrs route needs the package httpx", hint="pip install httpx") from error
    from mrs.server.http.listener import bind, url_of

    def tell(line: str) -> None:
        if not output.quiet:
            say(environment, line)

    with bind(flags.serve_ip, flags.port) as listener:
        proxy = Proxy(flags.servers, tell, FrontLimits(flags.max_body * 2**20))
        serve(proxy, listener, lambda: tell(f"routing {url_of(listener)}/v1"))
