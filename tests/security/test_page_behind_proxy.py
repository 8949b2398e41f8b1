"""The page behind a proxy that only passes bytes on: to the front end such a request comes from loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.api.guarded import made
from tests.e2e.deployment import contrail, up

PAGE, QUESTION = "/debug", "/debug/api/status"


@asynccontextmanager
async def forwarder(port: int) -> AsyncIterator[int]:
    """A TCP forwarder to that port of loopback, as nginx with `proxy_pass` and nothing else is; its own port."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield int(server.sockets[0].getsockname()[1])


async def test_with_keys_the_page_asks_for_its_token_on_loopback(tmp_path: Path) -> None:
    """A stranger behind the proxy gets neither the page nor an answer; `contrail debug` prints the address that does,
    and the key of a tenant opens it no more than no key."""
    key = made(tmp_path / "keys")
    words = ("--engine", "simulated", "--workers", "1", "--keys", str(tmp_path / "keys"))
    async with up(tmp_path / "data", *words) as running:
        port = int(running.url.rpartition(":")[2])
        # as nginx writes it: the address of proxy_pass, and no word of the client
        named = {"host": f"127.0.0.1:{port}"}
        async with (
            forwarder(port) as outside,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{outside}", headers=named, verify=False, timeout=60
            ) as stranger,
        ):
            statuses = {path: (await stranger.get(path)).status_code for path in (PAGE, QUESTION)}
            assert statuses == {PAGE: 401, QUESTION: 401}
            with_key = await stranger.get(QUESTION, headers={"authorization": f"Bearer {key}"})
            assert with_key.status_code == 401
            printed = await asyncio.to_thread(contrail, "debug", "--data", str(tmp_path / "data"), "--json")
            url = json.loads(printed.stdout)["pages"][0]["url"]
            assert (await stranger.get(url)).status_code == 200
            assert (await stranger.get(QUESTION)).status_code == 200
