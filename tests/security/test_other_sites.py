"""Pages of other sites and the API of a front end on loopback without keys: by a plain request, and by DNS rebinding.

The requests are as browsers write them. A page may send `text/plain` to any site without asking first; a name that
it made point to 127.0.0.1 stands in Host, and the browser then takes the API for the page's own site.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.auth.access_policy import policy_of
from api.config.schema import FrontendSection
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.clock import ManualClock
from tests.api.raw import Said, say
from tests.api.scripted import ScriptedBackend

EVIL, OURS = "http://evil.example", "https://chat.example.org"
BODY = json.dumps({"model": "tiny", "prompt": "hi"}).encode()
SIMPLE = "content-type: text/plain;charset=UTF-8"
JSON = "content-type: application/json"
COMPLETIONS, MESSAGES = "POST /v1/completions", "POST /v1/messages"


class Door:
    """A front end as its deployment file has it, and requests to it byte by byte."""

    def __init__(self, section: FrontendSection, host: str = "127.0.0.1") -> None:
        self.backend = ScriptedBackend()
        policy = policy_of(section, host, ManualClock(0))
        app = create_app(self.backend, FrontendMetrics(), ApiSettings(), policy=policy)
        self.server = HttpServer(app, bind("127.0.0.1", 0))

    async def ask(self, line: str, *headers: str, host: str = "", body: bytes = BODY) -> Said:
        """The answer to this request; Host is the address unless given."""
        body = body if line.startswith("POST") else b""
        own = host or str(self.server.address)
        head = [f"{line} HTTP/1.1", f"host: {own}", *headers, f"content-length: {len(body)}"]
        return await say(self.server.address, "\r\n".join(head).encode() + b"\r\n\r\n" + body)

    @property
    def own(self) -> str:
        """The origin of a page that the front end served itself."""
        return f"http://{self.server.address}"


@asynccontextmanager
async def door(host: str = "127.0.0.1", **section: object) -> AsyncIterator[Door]:
    """While it serves; it takes itself to listen on this host."""
    it = Door(FrontendSection(**section), host)  # type: ignore[arg-type]
    await it.server.start()
    yield it
    await it.server.stop(1.0)


async def test_a_rebound_name_reads_nothing() -> None:
    """No path answers to a name in the public DNS; loopback, addresses and private names are served."""
    async with door() as it:
        for line in (COMPLETIONS, MESSAGES, "GET /v1/models", "GET /version", "GET /openapi.json", "GET /health"):
            for rebound in ("evil.example", f"evil.example:{it.server.address.port}", "127.0.0.1.evil.example"):
                said = await it.ask(line, JSON, "sec-fetch-site: same-origin", host=rebound)
                assert said.statuses == [403], (line, rebound)
                assert b"frontend.hosts" in said.raw
        assert it.backend.requests == []
        for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "10.0.0.5", "contrail", "chat.localhost:80"):
            assert (await it.ask(COMPLETIONS, JSON, host=host)).statuses == [200], host
        assert (await it.ask(COMPLETIONS, JSON, host="host.docker.internal")).statuses == [200]


@pytest.mark.parametrize("kind", [SIMPLE, "content-type: application/x-www-form-urlencoded", "x-none: 1", JSON])
@pytest.mark.parametrize("line", [COMPLETIONS, MESSAGES])
async def test_a_page_of_another_site_asks_nothing(line: str, kind: str) -> None:
    """A simple POST is refused before its body is read, with an opaque origin, too, and by browsers that name no
    relation of the sites."""
    async with door() as it:
        for browser in (
            [f"origin: {EVIL}", "sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"],
            [f"origin: {EVIL}"],
            ["origin: null", "sec-fetch-site: cross-site"],
            ["sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"],
            ["origin: http://localhost:3000", "sec-fetch-site: same-site"],
            ["origin: http://127.0.0.1:3000", "sec-fetch-site: cross-site"],
        ):
            said = await it.ask(line, kind, *browser)
            assert said.statuses == [403], browser
            assert b"frontend.cors" in said.raw
            assert b"access-control-allow-origin" not in said.raw
        assert it.backend.requests == []


async def test_a_browser_sends_json_or_nothing() -> None:
    """A page that may ask still has to send JSON; programs that are no browsers send what they did."""
    async with door(cors=(OURS,)) as it:
        listed = (f"origin: {OURS}", "sec-fetch-site: cross-site")
        for browser in (listed, ("sec-fetch-site: same-origin",), (f"origin: {it.own}",)):
            assert (await it.ask(COMPLETIONS, SIMPLE, *browser)).statuses == [415]
            assert (await it.ask(COMPLETIONS, *browser)).statuses == [415]
            for kind in (JSON, "content-type: Application/JSON ; charset=utf-8", "content-type: application/x+json"):
                assert (await it.ask(COMPLETIONS, kind, *browser)).statuses == [200], (browser, kind)
        for program in ((), (SIMPLE,), ("content-type: application/x-www-form-urlencoded",), ("sec-fetch-mode: cors",)):
            assert (await it.ask(COMPLETIONS, *program)).statuses == [200], program


async def test_refusals_have_the_form_of_their_api() -> None:
    """Status, sentence, code and request id, as clients of the path know errors."""
    async with door() as it:
        said = await it.ask(COMPLETIONS, JSON, host="evil.example")
        assert said.errors[0]["code"] == "host_not_allowed"
        assert b"x-request-id: req-" in said.raw
        assert b'{"type":"error","error":{"type":"permission_error"' in (await it.ask(MESSAGES, f"origin: {EVIL}")).raw
        assert (await it.ask(COMPLETIONS, f"origin: {EVIL}")).errors[0]["code"] == "origin_not_allowed"
        own = (await it.ask(COMPLETIONS, SIMPLE, f"origin: {it.own}")).errors[0]
        assert own["code"] == "unsupported_content_type"


async def test_links_and_programs_go_on() -> None:
    """A link of another site may lead here, and so may applications whose pages come from no site."""
    async with door() as it:
        link = ("sec-fetch-site: cross-site", "sec-fetch-mode: navigate")
        assert (await it.ask("GET /v1/models", *link)).statuses == [200]
        assert (await it.ask(COMPLETIONS, JSON, *link)).statuses == [403]
        for app in ("app://obsidian.md", "vscode-webview://1abc", "chrome-extension://abcdef"):
            assert (await it.ask(COMPLETIONS, JSON, f"origin: {app}")).statuses == [200], app


async def test_a_listed_site_asks_before_it_sends() -> None:
    """Its preflight is answered, also that of a browser that asks before it lets a site into a private network."""
    async with door(cors=(OURS,)) as it:
        asks = ("access-control-request-method: POST", "access-control-request-headers: content-type")
        private = "access-control-request-private-network: true"
        said = await it.ask("OPTIONS /v1/completions", f"origin: {OURS}", *asks, private, "sec-fetch-site: cross-site")
        assert said.statuses == [200]
        assert b"access-control-allow-private-network: true" in said.raw
        other = await it.ask("OPTIONS /v1/completions", f"origin: {EVIL}", *asks, private, "sec-fetch-site: cross-site")
        assert other.statuses == [400]
        assert b"access-control-allow-origin" not in other.raw
        refused = await it.ask(COMPLETIONS, SIMPLE, f"origin: {OURS}")
        assert b"access-control-allow-origin: https://chat.example.org" in refused.raw
    async with door() as it:
        said = await it.ask("OPTIONS /v1/completions", f"origin: {OURS}", *asks, private)
        assert said.statuses == [403]
        assert b"access-control-allow" not in said.raw


async def test_names_of_the_operator() -> None:
    """`frontend.hosts` lists them, and is the whole list beyond loopback; without it any name is served there."""
    async with door(hosts=("chat.example.org",)) as it:
        assert (await it.ask(COMPLETIONS, host="Chat.Example.org:443")).statuses == [200]
        assert (await it.ask(COMPLETIONS, host="evil.example")).statuses == [403]
    async with door("0.0.0.0", hosts=("chat.example.org",)) as it:
        assert (await it.ask(COMPLETIONS, host="evil.example")).statuses == [403]
        assert (await it.ask(COMPLETIONS, host="10.0.0.5:8000")).statuses == [200]
    async with door("0.0.0.0") as it:
        assert (await it.ask(COMPLETIONS, host="llm.example.org")).statuses == [200]
        assert (await it.ask(COMPLETIONS, SIMPLE, f"origin: {EVIL}")).statuses == [403]
