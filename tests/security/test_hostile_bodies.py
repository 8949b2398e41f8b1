"""An API key's holder sends bodies of 15 MiB: other tenants' streams go on, and memory stays as it was."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

from actors.metrics.frontend_metrics import FrontendMetrics
from api.app import create_app
from api.config.addresses import Address
from api.openai.types.request_types import BIASES_BYTES_MAX, KIND_CHARS_MAX, MODEL_CHARS_MAX
from api.parsers.tool_choice import TOOLS_MAX
from api.server.body_budget import BODIES_MAX
from api.server.errors import MESSAGE_CHARS_MAX
from api.server.http_server import HttpServer
from api.server.limits import ApiSettings
from api.server.sockets import bind
from tests.actors.world import FAST, world
from tests.api.scripted import files
from tests.fixtures.machine_speed import slowness
from tests.security.hostile_bodies import (
    ASKED,
    CHAT,
    RESPONSES,
    SIZE,
    TOKENIZE,
    VALUES,
    chat,
    hostile_bodies,
)

STALL_S = 0.1
"""No turn of the loop may take so long, on a machine that is not slow …"""
TRIES = 3
"""… in the best of so many tries: a shared machine is slow for moments."""
EIGHT_STALL_S = 0.3
"""Nor so long under eight bodies at once, whose threads and senders take the processor from the loop."""
ANSWERED_S = 60.0
GROWTH_BYTES_MAX = 64 * 1024 * 1024
CLIENT = """
import http.client, sys
host, port, path, *files = sys.argv[1:]
for file in files:
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    with open(file, "rb") as body:
        sent = body.read()
    try:
        connection.request("POST", path, sent, {"content-type": "application/json"})
    except (BrokenPipeError, ConnectionResetError):
        pass
    answer = connection.getresponse()
    print(answer.status, len(answer.read()), flush=True)
"""
"""Sends each file as a body, one after another, in a process of its own: it must not take the server's time."""

HOLDERS = """
import select, socket, sys
host, port, path, size = sys.argv[1:]
head = f"POST {path} HTTP/1.1\\r\\nhost: a\\r\\ncontent-length: {size}\\r\\n\\r\\n".encode()
left = {}
for _ in range(60):
    connection = socket.create_connection((host, int(port)))
    connection.sendall(head)
    connection.setblocking(False)
    left[connection] = int(size) - 1
part = b" " * 65536
while not select.select([sys.stdin], [], [], 0)[0]:
    for connection in select.select([], [each for each in left if left[each]], [], 0.05)[1]:
        try:
            left[connection] -= connection.send(part[:left[connection]])
        except BlockingIOError:
            pass
        except OSError:
            left[connection] = 0
"""
"""Sixty clients that send all but the last byte of a body, until their standard input ends."""
HELD_S = 4.0


class LoopMonitor:
    """The longest turn of the loop while it runs, in time in which this process computed: others may be busy."""

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.longest_s = 0.0
        self.found_stall = False
        """True if a turn took too long; known at the end."""
        self._loop = asyncio.get_running_loop()
        self._last = (time.monotonic(), time.process_time())
        self._timer = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = (time.monotonic(), time.process_time())
        self.longest_s = max(self.longest_s, min(now[0] - self._last[0], now[1] - self._last[1]))
        self._last = (time.monotonic(), time.process_time())
        self._timer = self._loop.call_later(0.002, self._tick)

    def stop(self) -> None:
        """It measures no more."""
        self._timer.cancel()
        self.found_stall = self.longest_s > self.stall_s * slowness()


def freeze() -> None:
    """As in a front end, objects from before are never scanned again."""
    gc.collect()
    gc.freeze()


@contextmanager
def monitored(stall_s: float = STALL_S) -> Iterator[LoopMonitor]:
    """A monitor of the running loop."""
    monitor = LoopMonitor(stall_s)
    try:
        yield monitor
    finally:
        monitor.stop()


@asynccontextmanager
async def served(folder: Path, settings: ApiSettings) -> AsyncIterator[Address]:
    """The address of a real front end over a real router and a simulated worker."""
    for name, content in files().items():
        (folder / name).write_bytes(content)
    engine = dataclasses.replace(FAST, model_path=str(folder), vocab=300, context_max=4096, decode_us_per_step=5000)
    async with world() as here:
        await here.worker("decode-0", "tiny", engine)
        router = await here.router()
        await here.ready(router)
        server = HttpServer(create_app(router, FrontendMetrics(), settings), bind("127.0.0.1", 0))
        try:
            yield await server.start()
        finally:
            await server.stop(grace_s=0)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Address]:
    async with served(tmp_path, ApiSettings()) as address:
        yield address


async def attack(address: Address, path: str, *bodies: Path) -> list[tuple[int, int]]:
    """Status and size of each answer."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", CLIENT, address.host, str(address.port), path, *map(str, bodies)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(client.communicate(), ANSWERED_S)
    assert client.returncode == 0
    return [(int(line.split()[0]), int(line.split()[1])) for line in output.splitlines()]


async def test_no_body_holds_up_the_loop(site: Address, tmp_path: Path) -> None:
    """Before: 9 s for the turns of an assistant, 3 s for numbers, 200 ms for keys; answers of 39 MB."""
    slow: dict[str, int] = {}
    freeze()
    for name, path, body in hostile_bodies():
        file = tmp_path / "body"
        file.write_bytes(body)
        for _ in range(TRIES):
            with monitored() as monitor:
                ((status, size),) = await attack(site, path, file)
            assert status in {200, 400, 404, 413}, (name, status)
            assert status == 200 or size < 2 * MESSAGE_CHARS_MAX, (name, size)
            if not monitor.found_stall:
                break
        else:
            slow[name] = round(1000 * monitor.longest_s)
    assert slow == {}


async def test_streams_go_on_under_eight_bodies_at_once(site: Address, tmp_path: Path) -> None:
    """Before: a body of numbers stopped them for 3 s, eight for 25."""
    file = tmp_path / "body"
    file.write_bytes(chat(ASKED + b',"metadata":' + VALUES["floats"]()))
    text = tmp_path / "text"
    text.write_bytes(chat(b'"messages":[{"role":"user","content":"%b"}]' % (b"ab " * (SIZE // 3))))
    reader, writer = await asyncio.open_connection(*site)
    asked = b'{"model":"tiny","stream":true,"max_tokens":2000,%b}' % ASKED
    writer.write(b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(asked), asked))
    await reader.readuntil(b"\r\n\r\n")
    freeze()
    for _ in range(TRIES):
        with monitored(EIGHT_STALL_S) as monitor:
            statuses = await asyncio.gather(*(attack(site, CHAT, each) for each in [file, text] * 4))
        assert {status for ((status, _),) in statuses} <= {400, 413}
        if not monitor.found_stall:
            break
    assert not monitor.found_stall, monitor.longest_s
    assert await asyncio.wait_for(reader.readuntil(b"data: "), 1)  # it never broke off
    writer.close()


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
async def test_refused_bodies_are_not_kept(site: Address, tmp_path: Path, path: str) -> None:
    """A failure and the frame that held it held each other, and the body: 15 MiB each, until a rare collection."""
    file = tmp_path / "body"
    file.write_bytes(chat(b'"messages":[{"role":"user","content":"%b"}]' % (b"ab " * (SIZE // 3))))
    await attack(site, path, file)
    gc.collect()
    gc.disable()
    try:
        before = _resident_bytes()
        assert {status for status, _ in await attack(site, path, *[file] * 16)} == {400}
        assert _resident_bytes() - before < GROWTH_BYTES_MAX
    finally:
        gc.enable()


async def test_bodies_of_all_connections_are_bounded(tmp_path: Path) -> None:
    """Sixty clients send all but the last byte of 4 MiB: before, all were held."""
    large = 4 * 1024 * 1024
    async with served(tmp_path, ApiSettings(body_bytes_max=large)) as site:
        await attack(site, CHAT, _written(tmp_path / "body", b" " * large))
        before = _resident_bytes()
        program = (sys.executable, "-I", "-S", "-c", HOLDERS, site.host, str(site.port), CHAT, str(large))
        holders = await asyncio.create_subprocess_exec(*program, stdin=asyncio.subprocess.PIPE)
        assert holders.stdin is not None
        try:
            await asyncio.sleep(HELD_S)
            assert _resident_bytes() - before < BODIES_MAX * large + GROWTH_BYTES_MAX
            # a short one passes them all
            assert await attack(site, CHAT, _written(tmp_path / "body", chat(ASKED))) == [(200, ANY)]
        finally:
            holders.stdin.close()
            await holders.wait()


async def test_a_body_in_chunks_of_one_byte_holds_up_nothing(site: Address) -> None:
    """Each of them was copied with all before it."""
    reader, writer = await asyncio.open_connection(*site)
    body = chat(ASKED + b',"user":"%b"' % (b"a" * 300_000))
    chunks = b"".join([b"1\r\n%c\r\n" % byte for byte in body]) + b"0\r\n\r\n"
    freeze()
    with monitored() as monitor:
        writer.write(b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode())
        for start in range(0, len(chunks), 65536):
            writer.write(chunks[start : start + 65536])
            await writer.drain()
        assert b" 200 " in await asyncio.wait_for(reader.readline(), ANSWERED_S)
    assert not monitor.found_stall, monitor.longest_s
    writer.close()


def _written(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_read_fields_have_bounds(site: Address, tmp_path: Path) -> None:
    """At each bound a request is served, one beyond it is refused."""
    tools = [b'{"type":"function","name":"t%d"}' % number for number in range(TOOLS_MAX)]
    space = b'{"type":"namespace","name":"n","tools":[{"type":"function","name":"a"}]}'
    bias = b'{"20":1%b}'
    blank = BIASES_BYTES_MAX - len(bias % b"")
    cases = [
        (CHAT, chat(ASKED + b',"logit_bias":' + bias % (b" " * blank)), 200),
        (CHAT, chat(ASKED + b',"logit_bias":' + bias % (b" " * (blank + 1))), 400),
        (RESPONSES, _offering(*tools), 200),
        (RESPONSES, _offering(*tools[:-2], space), 200),
        (RESPONSES, _offering(*tools[:-1], space), 400),
        (RESPONSES, _offering(*tools, b'{"type":"web_search"}'), 400),
        (CHAT, b'{"model":"%b",%b}' % (b"m" * MODEL_CHARS_MAX, ASKED), 404),
        (CHAT, b'{"model":"%b",%b}' % (b"m" * (MODEL_CHARS_MAX + 1), ASKED), 400),
        (CHAT, chat(b'"messages":[{"role":"%b","content":"a"}]' % (b"r" * (KIND_CHARS_MAX + 1))), 400),
    ]
    for path, body, expected in cases:
        ((status, size),) = await attack(site, path, _written(tmp_path / "body", body))
        assert status == expected, (body[:80], len(body))
        assert status == 200 or size < 2 * MESSAGE_CHARS_MAX


def _offering(*tools: bytes) -> bytes:
    head = b'{"model":"tiny","max_output_tokens":4,"input":"a","tool_choice":"none","tools":[%b]}'
    return head % b",".join(tools)


def test_the_bodies_are_as_large_as_they_may_be() -> None:
    """Else the test of the loop would show less than an attacker can do."""
    limit = ApiSettings().body_bytes_max
    sizes = [len(body) for _, _, body in hostile_bodies()]
    assert max(sizes) > 0.9 * limit
    assert max(sizes) <= limit
    assert json.loads(VALUES["keys"]())["a"] == 1
