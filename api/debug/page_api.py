"""Page API: JSON below /debug/api/. Every error is one sentence under `error`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.debug.cache_view import StillCounting
from api.debug.keyframes import StateNotFolded
from api.debug.page_proxy import BODY_BYTES_MAX, PREFIX
from api.debug.recording_view import RecordingView
from api.debug.what_if_view import parse_question
from core.errors import CallerError, ContrailError, Unavailable
from replay.cache.cache_report import BY_CAUSE, GROUPINGS

NUMBER_MAX = 2**53
"""The largest integer that a browser represents exactly."""
DIGITS_MAX = len(str(NUMBER_MAX))
TIME_MAX_MS = 253_402_300_799_000
"""The last second of the year 9999: later times cannot be formatted."""

_logger = logging.getLogger(__name__)
Answer = Callable[[Request], Awaitable[dict[str, Any]]]


def create_page_api(view: RecordingView) -> Starlette:
    """The application that answers the page's questions from the view."""
    ask = PageApi(view)
    answers: dict[str, Answer] = {
        "/status": ask.status,
        "/timeline": ask.timeline,
        "/load": ask.load,
        "/decision/{n}": ask.decision,
        "/explanation/{n}": ask.explanation,
        "/search": ask.search,
        "/replicas": ask.replicas,
        "/cache": ask.cache,
        "/planner": ask.planner,
        "/planner/{seq}": ask.planner_decision,
        "/state": ask.state,
    }
    routes = [Route(PREFIX + path, _answered(answer)) for path, answer in answers.items()]
    routes.append(Route(PREFIX + "/what-if", _answered(ask.what_if), methods=["POST"]))
    return Starlette(routes=routes)


class PageApi:
    """Handlers by path: each parses its request and asks the view; CallerError if a parameter is wrong."""

    def __init__(self, view: RecordingView) -> None:
        self._view = view

    async def status(self, _request: Request) -> dict[str, Any]:
        """The recording that is shown, and how far it is read."""
        return self._view.status()

    async def timeline(self, request: Request) -> dict[str, Any]:
        """Decisions and notes since `after`."""
        after, notes = _number(request, "after", 0), _number(request, "notes", 0)
        return self._view.timeline_after(after, notes, request.query_params.get("run", ""))

    async def load(self, request: Request) -> dict[str, Any]:
        """The load reports of workers in a window."""
        from_ms, to_ms = (_time(name, _number(request, name)) for name in ("from_ms", "to_ms"))
        return self._view.load(from_ms, to_ms, _number(request, "points", 1000))

    async def decision(self, request: Request) -> dict[str, Any]:
        """One decision as it was recorded."""
        return self._view.decision(_whole("n", request.path_params["n"]))

    async def explanation(self, request: Request) -> dict[str, Any]:
        """The full explanation of one decision."""
        return await self._view.explanation(_whole("n", request.path_params["n"]))

    async def search(self, request: Request) -> dict[str, Any]:
        """Decisions that match a search text."""
        return self._view.search(request.query_params.get("q", ""))

    async def replicas(self, request: Request) -> dict[str, Any]:
        """The replicas at a time."""
        return self._view.replicas(_time("ms", _number(request, "ms")))

    async def cache(self, request: Request) -> dict[str, Any]:
        """The cache hits that were available and achieved, by cause and group."""
        by = request.query_params.get("by", BY_CAUSE)
        if by not in GROUPINGS:
            raise CallerError(f"by: {by[:40]!r} is none of {', '.join(GROUPINGS)}")
        return self._view.cache(by)

    async def planner(self, request: Request) -> dict[str, Any]:
        """The planner's decisions since `after`."""
        return await self._view.planner(_number(request, "after", 0))

    async def planner_decision(self, request: Request) -> dict[str, Any]:
        """The explanation of one of them."""
        return await self._view.planner_decision(
            _whole("seq", request.path_params["seq"]),
            request.query_params.get("model"),
            request.query_params.get("role"),
        )

    async def state(self, request: Request) -> dict[str, Any]:
        """The state before a decision, or at a time."""
        n, ms = _optional(request, "n"), _optional(request, "ms")
        if (n is None) == (ms is None):
            raise CallerError("give either n or ms")
        ms = None if ms is None else _time("ms", ms)
        return await self._view.state(n, ms, request.query_params.get("replica"))

    async def what_if(self, request: Request) -> dict[str, Any]:
        """The decisions of a window under other settings."""
        return await self._view.what_if(parse_question(await _body(request)))


def _answered(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            return _json(200, await answer(request))
        except (StateNotFolded, StillCounting) as error:
            return _json(202, {"pending": True, "error": str(error)})
        except ContrailError as error:
            return _json(_status(error), {"error": str(error)})
        except asyncio.CancelledError:
            return _json(503, {"error": "the page's server is stopping"})
        except Exception:  # one question failed, and the page goes on
            _logger.exception("%s failed inside", request.url.path)
            return _json(500, {"error": "this failed inside the server; its log says how"})

    return respond


def _status(error: ContrailError) -> int:
    match error:
        case CallerError():
            return 400
        case Unavailable():
            return 503
        case _:
            return 500


def _json(status: int, value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _number(request: Request, name: str, default: int | None = None) -> int:
    found = _optional(request, name)
    if found is None and default is None:
        raise CallerError(f"{name} is missing")
    return default or 0 if found is None else found


def _optional(request: Request, name: str) -> int | None:
    given = request.query_params.get(name)
    return None if given is None else _whole(name, given)


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > DIGITS_MAX or int(text) > NUMBER_MAX:
        raise CallerError(f"{name}: {text[:40]!r} is no whole number up to {NUMBER_MAX}")
    return int(text)


def _time(name: str, ms: int) -> int:
    if ms > TIME_MAX_MS:
        raise CallerError(f"{name}: {ms} lies beyond the year 9999: give milliseconds since 1970")
    return ms


async def _body(request: Request) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise CallerError("send application/json")  # which another site's page cannot, without being asked about it
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise CallerError(f"the question is longer than {BODY_BYTES_MAX} bytes")
    return bytes(body)
