"""Who is asked for a connection: the servers that were named, and those that the last connection told of.

A cluster tells each client where its servers are, mostly as bare addresses. Those of an earlier connection are
forgotten: where servers move, the list would grow with every connection, and all of it be tried in an outage.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlparse

from nats.aio.client import Client, Srv


class Servers:
    """See the module's text. Its `str` names all of them."""

    def __init__(self, named: list[str]) -> None:
        self._named = named
        self._told: list[Srv] = []

    def __str__(self) -> str:
        return ", ".join([*self._named, *(server.uri.geturl() for server in self._told)])

    async def connect(self, client: Client, options: dict[str, Any]) -> None:
        """The client is connected to one of them. Raises what the library raises."""
        # the library adds what is named to this; as URLs these would lose the names that their certificates bear
        client._server_pool = [replace(server) for server in self._told]  # noqa: SLF001
        await client.connect(self._named, **options)
        self._told = _told_by(client)


def _told_by(client: Client) -> list[Srv]:
    """The servers that a client just connected was told of and that were not named."""
    current = client._current_server  # noqa: SLF001
    assert current is not None
    scheme = "tls" if current.uri.scheme == "tls" else "nats"
    tls_name = current.tls_name or current.uri.hostname
    if _is_address(tls_name):  # no other server's certificate bears it
        tls_name = None
    named = {_place(server) for server in client._server_pool if not server.discovered}  # noqa: SLF001
    urls = client._server_info.get("connect_urls") or []  # noqa: SLF001
    told = [Srv(urlparse(f"{scheme}://{url}"), discovered=True) for url in urls]
    return [
        replace(server, tls_name=tls_name if _is_address(server.uri.hostname) else None)
        for server in told
        if _place(server) not in named
    ]


def _place(server: Srv) -> tuple[str | None, int | None]:
    return server.uri.hostname, server.uri.port


def _is_address(host: str | None) -> bool:
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True
