"""Process query: the registered processes, and the state that each returns over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import orjson

from api.cli.quantities import count_text
from api.config.addresses import is_loopback
from api.server.http_client import http_get
from core.errors import Unavailable
from streams.registry import Change, Registry

REPLICAS, WORKERS = "replicas/", "workers/"
ANSWER_S = 2.0
"""Longest wait for one process's answer."""
ASKED_AT_ONCE_MAX = 64
"""Processes that are asked in parallel; the rest wait for their turn."""
LOOPBACK_ONLY = " (loopback only: ask on its machine, or start it with --ops HOST:PORT)"
QUERY_S = 30.0
"""Longest wait for all processes together."""


class RegisteredProcess(NamedTuple):
    """One registered process."""

    id: str
    name: str
    ops: str
    """HOST:PORT of its operations listener; empty if it registered none."""
    about: dict[str, Any]
    """Its whole registration."""
    revision: int
    """The registry's revision of its registration."""


class ProcessReply(NamedTuple):
    """The state of a process, or the reason why there is none."""

    part: RegisteredProcess
    state: dict[str, Any] | None
    why: str = ""
    """The reason, if there is no state."""


async def registered_processes(registry: Registry, prefix: str) -> list[RegisteredProcess]:
    """All that are registered below the prefix (REPLICAS, WORKERS), by name. Unavailable if the registry is away."""
    return sorted(map(_part, await registry.get(prefix)), key=lambda part: (part.name, part.id))


async def query_processes(parts: list[RegisteredProcess], token: str | None) -> list[ProcessReply]:
    """Each process's reply, in the order given. All are asked at once, with the token; each may take ANSWER_S."""
    turns = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def ask(part: RegisteredProcess) -> ProcessReply:
        async with turns:
            return await _ask(part, token)

    try:
        async with asyncio.timeout(QUERY_S):
            return list(await asyncio.gather(*map(ask, parts)))
    except TimeoutError as error:
        raise Unavailable(f"{count_text(len(parts), 'part')} did not answer within {QUERY_S:g} s together") from error


async def _ask(part: RegisteredProcess, token: str | None) -> ProcessReply:
    if not part.ops:
        return ProcessReply(part, None, "registered no operations address")
    # a process on loopback is another machine's if it is not this one's
    elsewhere = LOOPBACK_ONLY if is_loopback(part.ops.rpartition(":")[0]) else ""
    found = await http_get(part.ops, "/state", ANSWER_S, token)
    if found is None:
        return ProcessReply(part, None, f"does not answer at {part.ops} within {ANSWER_S:g} s{elsewhere}")
    if found.status == 401:
        return ProcessReply(part, None, f"asks at {part.ops} for another token than that of `operations.token_file`")
    try:
        state = orjson.loads(found.body)
    except orjson.JSONDecodeError:
        state = None
    if not found.ok or not isinstance(state, dict):
        return ProcessReply(
            part, None, f"answers {found.status} at {part.ops}/state, and not as a part of Contrail does"
        )
    owner = state.get("replica") or state.get("worker")
    if owner is not None and owner != part.id:
        return ProcessReply(part, None, f"is gone: {part.ops} is now {owner}{elsewhere}")
    return ProcessReply(part, state)


def _part(change: Change) -> RegisteredProcess:
    try:
        about = orjson.loads(change.value or b"{}")
    except orjson.JSONDecodeError:
        about = {}
    if not isinstance(about, dict):
        about = {}
    process_id = change.key.rpartition("/")[2]
    return RegisteredProcess(
        process_id, str(about.get("name") or process_id), str(about.get("ops") or ""), about, change.revision
    )
