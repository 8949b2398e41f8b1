"""A front end behind keys, and the command that makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner
from starlette.responses import PlainTextResponse

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.auth.access_policy import AccessPolicy
from api.auth.keyring import Keyring
from api.cli.keys import keys as keys_command
from api.debug.page_access import PageAccess
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from core.clock import ManualClock
from tests.api.scripted import ScriptedBackend

COMPLETIONS = "/v1/completions"
ASKED = {"model": "tiny", "prompt": "hi"}
NOON_MS = 1_795_000_000_000
"""Some time before keys that are made now expire."""
TOKEN = "token-of-the-page"


def run(*words: str) -> str:
    """What `contrail keys` says to these words."""
    result = CliRunner().invoke(keys_command, words)
    if result.exception is not None:
        raise result.exception
    return result.output.strip()


def made(file: Path, tenant: str = "team", *words: str) -> str:
    """A fresh key in the file."""
    return run("create", "--file", str(file), "--tenant", tenant, *words)


class Guarded:
    """A front end with this policy; behind keys if there is a file of them."""

    def __init__(self, file: Path | None = None, **policy: Any) -> None:
        self.clock = ManualClock(NOON_MS)
        self.backend = ScriptedBackend()
        keyring = None if file is None else Keyring(file, self.clock)
        page = PageAccess(PlainTextResponse("page"), TOKEN)
        access = AccessPolicy(keyring=keyring, **policy)
        app = create_app(self.backend, FrontendMetrics(), ApiSettings(), self.clock, page, access)
        self.server = HttpServer(app, bind("127.0.0.1", 0))

    @asynccontextmanager
    async def served(self) -> AsyncIterator[httpx.AsyncClient]:
        """While it listens, a client of it."""
        address = await self.server.start()
        async with httpx.AsyncClient(base_url=f"http://{address}", verify=False, timeout=30) as http:
            yield http
        await self.server.stop(grace_s=1)

    async def ask(self, http: httpx.AsyncClient, key: str, **headers: str) -> int:
        """The status of a completion with this key."""
        answer = await http.post(COMPLETIONS, json=ASKED, headers={"authorization": f"Bearer {key}", **headers})
        return answer.status_code
