"""`/v1/route` over a real router with simulated workers, as a proxy uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from actors.engines.simulated.simulated_engine import SimulatedEngine
from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router.reservations import ReservationBounds
from actors.router.router import Router
from api.app import create_app
from api.auth.access_policy import AccessPolicy
from api.auth.keyring import Keyring
from api.route.proxy_routes import ProxyAccess
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.clock import SystemClock
from core.events import RequestFinished, RequestRouted
from core.prompt import tokens_to_bytes
from core.settings import RoutingSettings
from core.subjects import ROUTING
from tests.actors.world import FAST, World, world
from tests.api.guarded import made
from tests.api.scripted import files, ids
from tests.fixtures.eventually import eventually

TOKEN = "secret-of-the-proxy"
HEADERS = {"x-contrail-route-token": TOKEN}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi there"}]}
PROMPT = "<|start|><|user|>hi there<|end|><|assistant|>"
URL = "http://10.0.0.7:8000"
OPEN_MAX = 4


class Proxied(NamedTuple):
    it: World
    router: Router
    metrics: FrontendMetrics
    http: httpx.AsyncClient

    async def route(self, body: dict[str, Any], path: str = "/v1/route", **headers: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers={**HEADERS, **headers})

    async def report(self, id: str, what: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"/v1/route/{id}/{what}", json=body, headers=HEADERS)


@asynccontextmanager
async def proxied(
    *,
    policy: AccessPolicy | None = None,
    is_on: bool = True,
    settings: RoutingSettings | None = None,
    workers: int = 2,
    url: str = URL,
) -> AsyncIterator[Proxied]:
    async with world() as it:
        for number in range(workers):
            engine = SimulatedEngine("tiny", FAST)
            engine.info = engine.info._replace(server=url, rank=number if url else None)
            worker = await it.worker(f"w{number}", engine=engine)
            worker._files = files()
        bounds = ReservationBounds(open_max=OPEN_MAX, expires_after_s=30)
        router = await it.router(settings=settings or RoutingSettings(hold_max_ms=0), reservations=bounds)
        await it.ready(router, workers)
        metrics = FrontendMetrics()
        metrics.watch_replica(router.describe)
        access = ProxyAccess(router, TOKEN) if is_on else None
        app = create_app(router, metrics, ApiSettings(), policy=policy, proxies=access)
        server = HttpServer(app, bind("127.0.0.1", 0))
        async with httpx.AsyncClient(base_url=f"http://{await server.start()}", verify=False, timeout=30) as http:
            yield Proxied(it, router, metrics, http)
        await server.stop(grace_s=1)


@pytest.fixture
async def front() -> AsyncIterator[Proxied]:
    async with proxied() as found:
        yield found


async def test_off_there_is_no_such_route() -> None:
    """404 as of any unknown path, with the token or without."""
    async with proxied(is_on=False) as front:
        for path in ("/v1/route", "/v1/route/r/end"):
            answer = await front.route(CHAT, path)
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")


@pytest.mark.parametrize("path", ["/v1/route", "/v1/route/r/first-token", "/v1/route/r/end"])
async def test_the_token_is_asked_for(front: Proxied, path: str) -> None:
    """Before anything else: 401 without, 403 with another one."""
    assert (await front.http.post(path, json=CHAT)).json()["error"]["code"] == "route_token_missing"
    statuses = [
        (await front.http.post(path, json=CHAT, headers={"x-contrail-route-token": token})).status_code
        for token in ("", "wrong", f"{TOKEN}x")
    ]
    assert statuses == [401, 403, 403]
    assert not front.router.scheduler.requests


async def test_a_body_is_routed_and_reported(front: Proxied) -> None:
    """The client's own body gets a worker; headers say the same for proxies that read no body; the log has it all."""
    answer = await front.route(CHAT, **{"x-request-id": "mine", "x-contrail-accel": "@worker"})
    told = answer.json()
    assert (told["id"], told["dry"], told["frontend"], told["expires_after_s"]) == ("mine", False, "frontend-0", 30)
    assert (told["prompt_tokens"], told["predicted_cached_tokens"]) == (len(ids(PROMPT)), 0)
    assert (told["worker"]["url"], told["cache_salt"], told["candidates_total"]) == (URL, None, 2)
    assert told["candidates"][0].items() >= told["worker"].items()
    named = {name: answer.headers[f"x-contrail-route-{name}"] for name in ("id", "url", "rank")}
    assert named == {"id": "mine", "url": URL, "rank": str(told["worker"]["rank"])}
    assert answer.headers["x-accel-redirect"] == "@worker"
    assert front.metrics.registry.get_sample_value("contrail_reservations_open") == 1
    assert (await front.report("mine", "first-token", cached_tokens=0)).json() == {"ok": True}
    assert (await front.report("mine", "end", outcome="stop", output_tokens=12)).status_code == 200
    again = await front.report("mine", "end", outcome="stop")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "reservation_not_found")
    assert "another front end" in again.json()["error"]["message"]
    await front.it.settled(front.router)
    (end,) = await front.it.told(ROUTING, RequestFinished)
    assert (end.request, end.outcome, end.output_tokens, end.stages[1] >= 0) == ("mine", "stop", 12, True)
    assert front.metrics.registry.get_sample_value("contrail_reservations_open") == 0
    labels = {"model": "tiny", "outcome": "answered"}
    assert front.metrics.registry.get_sample_value("contrail_requests_total", labels) == 1


async def test_nginx_is_led_to_servers_alone() -> None:
    """A worker that is not attached is a 503, and nothing of it stays in flight; a name of no location is a 400."""
    async with proxied(url="") as front:
        answer = await front.route(CHAT, **{"x-contrail-accel": "@worker"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_not_attached")
        assert "x-accel-redirect" not in answer.headers
        await front.it.settled(front.router)
        assert [end.outcome for end in await front.it.told(ROUTING, RequestFinished)] == ["abort"]
        told = (await front.route(CHAT)).json()
        assert (told["worker"]["url"], told["worker"]["name"][:1]) == (None, "w")
        answer = await front.route(CHAT, **{"x-contrail-accel": "/etc"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-contrail-accel")
        assert front.router.reservations.describe()["open"] == 1


async def test_dry_tells_the_same_and_leaves_nothing(front: Proxied) -> None:
    """But id and expiry, there is all that a reservation tells."""
    dry = (await front.route(CHAT, "/v1/route?dry=true")).json()
    assert await front.it.told(ROUTING, RequestRouted) == []
    kept = (await front.route(CHAT)).json()
    assert dry.pop("dry") is True
    assert kept.keys() - dry.keys() == {"id", "dry", "frontend", "expires_after_s"}
    assert {**kept, **dry} == kept
    assert front.router.reservations.describe()["open"] == 1
    wrong = await front.route(CHAT, "/v1/route?dry=maybe")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "dry")


@pytest.mark.parametrize(
    ("uri", "body", "tokens"),
    [
        ("/v1/chat/completions", CHAT, ids(PROMPT)),
        ("/v1/completions?a=b", {"model": "tiny", "prompt": "hi there"}, ids("<|start|>hi there")),
        ("/v1/completions/", {"model": "tiny", "prompt": [5, 6, 7]}, (5, 6, 7)),
        ("/v1/messages", {**CHAT, "max_tokens": 9, "stream": True}, ids(PROMPT)),
    ],
)
async def test_bodies_of_each_api_have_its_tokens(
    front: Proxied, uri: str, body: dict[str, Any], tokens: tuple[int, ...]
) -> None:
    """The path that the client asked for says whose body it is; its prompt is that of a real request."""
    told = (await front.route(body, **{"x-original-uri": uri})).json()
    assert told["prompt_tokens"] == len(tokens)
    (request,) = front.router.scheduler.running
    assert request.payload is not None
    assert request.payload.tokens == tokens_to_bytes(tokens)


@pytest.mark.parametrize(
    ("uri", "body", "status", "fault"),
    [
        ("/v1/responses", CHAT, 400, "x-original-uri"),
        ("/v1/chat/completions", {**CHAT, "n": 2}, 400, "n = 1"),
        ("/v1/completions", {"model": "tiny", "prompt": ["a", "b"]}, 400, "one prompt"),
        ("/v1/chat/completions", {**CHAT, "model": "none"}, 404, "does not exist"),
        ("/v1/chat/completions", {"model": "tiny"}, 400, "messages"),
    ],
)
async def test_refusals_have_the_form_of_the_api(
    front: Proxied, uri: str, body: dict[str, Any], status: int, fault: str
) -> None:
    answer = await front.route(body, **{"x-original-uri": uri})
    assert (answer.status_code, fault in answer.json()["error"]["message"]) == (status, True)
    assert not front.router.scheduler.requests


async def test_a_messages_body_is_refused_in_its_own_words(front: Proxied) -> None:
    """A proxy can hand the refusal on to its client."""
    body = {**CHAT, "model": "none", "max_tokens": 9}
    answer = await front.route(body, **{"x-original-uri": "/v1/messages"})
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (
        404, "error", "not_found_error",
    )  # fmt: skip


async def test_admission_refuses_with_its_own_status() -> None:
    """503 beyond the bound of open ones, 429 for the tenant that fills the queue, both with `retry-after`."""
    async with proxied() as front:
        assert [(await front.route(CHAT)).status_code for _ in range(OPEN_MAX)] == [200] * OPEN_MAX
        refused = await front.route(CHAT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
    settings = RoutingSettings(hold_max_ms=0, active_max=1, queue_max=2)
    async with proxied(settings=settings, workers=1) as front:
        greedy = {"x-contrail-tenant": "greedy"}
        assert (await front.route(CHAT, **greedy, **{"x-request-id": "first"})).status_code == 200
        waiting = [asyncio.create_task(front.route(CHAT, **greedy)) for _ in range(2)]
        await eventually(lambda: front.router.scheduler.waiting == 2, "they wait")
        modest = asyncio.create_task(front.route(CHAT, **{"x-contrail-tenant": "modest"}))
        (refused_one,), (last,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        answer = refused_one.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await front.report("first", "end", outcome="stop")).status_code == 200
        (next_one,), _ = await asyncio.wait({modest, last}, return_when=asyncio.FIRST_COMPLETED)
        assert (await front.report(next_one.result().json()["id"], "end", outcome="stop")).status_code == 200
        assert [(await each).status_code for each in (modest, last)] == [200, 200]


async def test_reports_are_checked(front: Proxied) -> None:
    """400 that names the field; the reservation stays open."""
    assert (await front.route(CHAT, **{"x-request-id": "mine"})).status_code == 200
    for what, body, param in (
        ("end", {}, "outcome"),
        ("end", {"outcome": "worker_lost"}, "outcome"),
        ("end", {"outcome": "stop", "output_tokens": -1}, "output_tokens"),
        ("end", {"outcome": "stop", "output_tokens": 10**6}, None),
        ("first-token", {"cached_tokens": 10**4}, None),
    ):
        answer = await front.report("mine", what, **body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
    assert front.router.reservations.describe()["open"] == 1


async def test_keys_name_the_tenant_and_proxies_their_token(tmp_path: Path) -> None:
    """A body needs its client's key, and is routed in the cache of that tenant, whose salt the answer tells. Reports
    need the token alone."""
    file = tmp_path / "keys"
    key = made(file, "blue")
    async with proxied(policy=AccessPolicy(keyring=Keyring(file, SystemClock()))) as front:
        assert (await front.route(CHAT)).json()["error"]["code"] == "invalid_api_key"
        told = (await front.route(CHAT, authorization=f"Bearer {key}", **{"x-request-id": "mine"})).json()
        assert told["cache_salt"] == "blue:"
        assert (await front.report("mine", "end", outcome="stop")).status_code == 200
        await eventually(lambda: not front.router.scheduler.requests, "the end")
        await front.it.settled(front.router)
        (routed,) = await front.it.told(ROUTING, RequestRouted)
        assert routed.tenant == "blue"
