"""The internals of uvicorn that the room uses are there, and all of them are named here."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn import _types
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from api import server

MODULES = {
    _types: ["ASGI3Application", "ASGISendEvent", "HTTPScope"],
    flow_control: ["HIGH_WATER_LIMIT"],
    httptools_impl: ["STATUS_LINE"],
}
OBJECTS = {
    "HttpToolsProtocol": "_start_asgi_task access_log access_logger app app_state asgi_version client connections "
    "cycle expect_100_continue flow headers logger loop on_body on_header on_headers_complete on_message_begin "
    "on_message_complete on_response_complete parser pipeline scheme scope send_400_response server server_state "
    "shutdown tasks transport url",
    "RequestResponseCycle": "access_log access_logger body chunked_encoding default_headers disconnected "
    "expected_content_length flow keep_alive logger message_event more_body on_response receive response_complete "
    "response_started run_asgi scope send transport waiting_for_100_continue",
    "FlowControl": "drain pause_reading read_paused resume_reading write_paused",
    "ServerState": "connections default_headers tasks total_requests",
}


@pytest.fixture
async def fields() -> dict[str, set[str]]:
    """What the library's own objects have while a request is answered, by class."""

    async def application(_scope: object, _receive: object, _send: object) -> None:
        await asyncio.Event().wait()

    state = ServerState()
    config = uvicorn.Config(application, lifespan="off", log_config=None)
    protocol = HttpToolsProtocol(config, state, {})
    protocol.connection_made(MagicMock())
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    for task in state.tasks:
        task.cancel()
    await asyncio.gather(*state.tasks, return_exceptions=True)
    return {type(each).__name__: set(dir(each)) for each in (protocol, protocol.cycle, protocol.flow, state)}


async def test_the_library_still_has_them(fields: dict[str, set[str]]) -> None:
    """One that is gone is named, with what to do."""
    lost = [f"{kind}.{name}" for kind, names in OBJECTS.items() for name in names.split() if name not in fields[kind]]
    lost += [
        f"{module.__name__}.{name}" for module, names in MODULES.items() for name in names if not hasattr(module, name)
    ]

    assert not lost, f"uvicorn has lost {lost}: mend api/server/, then its range in pyproject.toml"


async def test_all_that_the_room_uses_are_named(fields: dict[str, set[str]]) -> None:
    """Whatever the room reads, sets or overrides of these objects stands in the lists above."""
    room = Path(next(iter(server.__path__)))
    trees = [ast.parse((room / f"{name}.py").read_text()) for name in ("protocol", "exchange")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    used -= set(dir(asyncio.Protocol))

    assert {kind: used & names for kind, names in fields.items()} == {
        kind: set(names.split()) for kind, names in OBJECTS.items()
    }
