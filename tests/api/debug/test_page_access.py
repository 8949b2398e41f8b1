"""Who may see the page: nobody but this machine without a token, nobody beyond it without the right one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.responses import PlainTextResponse

from api.config.addresses import is_loopback
from api.debug.page_access import PageAccess, token_of
from core.keys import DeploymentKey

KEY = DeploymentKey(bytes(range(32)))
TOKEN = token_of(KEY)
HERE = "http://127.0.0.1:8000"


def client(token: str | None, base_url: str = HERE) -> httpx.AsyncClient:
    app = PageAccess(PlainTextResponse("page", headers={"cache-control": "public"}), token)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base_url)


@pytest.fixture
async def guarded() -> AsyncIterator[httpx.AsyncClient]:
    async with client(TOKEN, "http://edge:8000") as http:
        yield http


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_what_loopback_is(host: str, ours: bool) -> None:
    """Addresses that only this machine reaches."""
    assert is_loopback(host) is ours


def test_a_token_is_the_deployments() -> None:
    """Every front end of it has the same, another deployment another, and it tells nothing of the key."""
    assert token_of(DeploymentKey(bytes(range(32)))) == TOKEN
    assert token_of(DeploymentKey(bytes(32))) != TOKEN
    assert TOKEN not in KEY.link_key.hex() + KEY.chain_key.hex() + KEY.secret.hex()


async def test_without_the_token_a_sentence(guarded: httpx.AsyncClient) -> None:
    """401, whatever is tried."""
    for path in ("/debug", "/debug/api/status", "/debug?token=", f"/debug?token={TOKEN[:-1]}", "/debug?token=é"):
        answer = await guarded.get(path)
        assert answer.status_code == 401
        assert answer.text == "this page needs its token: open the address that `contrail debug` prints\n"
        assert "set-cookie" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
    guarded.cookies.set("contrail_debug_8000", "0" * 32)
    assert (await guarded.get("/debug")).status_code == 401


async def test_the_token_once_then_a_cookie(guarded: httpx.AsyncClient) -> None:
    """No script sees the cookie, no other site's request carries it."""
    answer = await guarded.get(f"/debug?token={TOKEN}")
    assert answer.status_code == 200
    assert answer.headers["set-cookie"] == f"contrail_debug_8000={TOKEN}; Path=/debug; HttpOnly; SameSite=Strict"
    assert (await guarded.get("/debug/api/status")).status_code == 200
    over_tls = await guarded.get(f"https://edge:8000/debug?token={TOKEN}")
    assert over_tls.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_an_address_with_too_many_fields_is_refused(token: str | None) -> None:
    """A sentence, whoever asks; it is no failure of ours."""
    async with client(token) as http:
        address = f"/debug?token={TOKEN}&" + "&".join(f"x{number}=1" for number in range(63))
        assert (await http.get(address)).status_code == 200
        refused = await http.get(address + "&more=1")
        assert refused.status_code == 400
        assert refused.text == "this address has more than 64 fields: open it without what was added\n"
        assert "set-cookie" not in refused.headers
        assert refused.headers["cache-control"] == "no-store"


async def test_on_loopback_only_by_its_name() -> None:
    """A name that some other site made point here is refused; so is what was passed on from elsewhere."""
    async with client(None) as http:
        for url in (HERE, "http://localhost:9", "http://[::1]:80"):
            assert (await http.get(f"{url}/debug")).status_code == 200
        rebound = await http.get("http://evil.example:8000/debug")
        assert rebound.status_code == 403
        assert "served on loopback only" in rebound.text
        for header in ("x-forwarded-for", "forwarded", "x-real-ip"):
            passed_on = await http.get("/debug", headers={header: "1.2.3.4"})
            assert passed_on.status_code == 403
            assert "not through a proxy" in passed_on.text


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_other_sites_get_nothing(token: str | None) -> None:
    """A link may lead here; nothing of another page may ask."""
    async with client(token) as http:
        http.cookies.set("contrail_debug_8000", TOKEN)
        for site in ("cross-site", "same-site"):
            asked = await http.get("/debug/api/status", headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"})
            assert asked.status_code == 403
            linked = await http.get("/debug", headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"})
            assert linked.status_code == 200
        own = await http.get("/debug/api/status", headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"})
        assert own.status_code == 200


async def test_every_answer_is_closed() -> None:
    """The headers stand on answers and refusals alike, in place of what the application said."""
    async with client(None) as http:
        for answer in (await http.get("/debug"), await http.get("http://evil.example/debug")):
            assert answer.headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
