"""Long prompts name the parts that a worker was sent before: the engine sees the whole prompt, or nothing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import msgspec
import pytest

from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import PART_TOKENS, HashColumns
from actors.transport import worker_connection
from actors.transport.frames import AskPrompt, Generate, PromptParts, ToReplica, ToWorker
from actors.transport.framing import encode_frame
from actors.transport.reconnecting_client import ReconnectingClient
from actors.transport.worker_connection import SENT_PARTS_MAX, WorkerConnection, WorkerDeclined, WorkerDisconnected
from actors.transport.worker_server import WorkerServer
from core.errors import CallerError
from core.generation import NO_HINT, GenerateRequest, Hint, Output, Sampling
from core.ids import RequestId
from core.prompt import scope_bytes
from tests.actors.scripted_engine import ScriptedHost
from tests.actors.transport.linking import KEY, LINK, TokenReader, linked, rest, up
from tests.fixtures.eventually import eventually

PART = 4 * PART_TOKENS
TALK = random.Random(1).randbytes(6 * PART)
FIRST, SECOND = TALK[: 3 * PART + 400], TALK[: 4 * PART + 800]
"""Two turns of a talk."""


class Wire:
    """A worker's server, a front end's connection to it, and the frames that both sent."""

    def __init__(self, server: WorkerServer, host: ScriptedHost, client: ReconnectingClient) -> None:
        self.server = server
        self.host = host
        self.client = client
        self.columns = HashColumns(DigestStore(), 7, KEY)
        self.sent: list[ToWorker | ToReplica] = []

    @property
    def connection(self) -> WorkerConnection:
        found = self.client.connection
        assert found is not None
        return found

    def ask(self, name: str, tokens: bytes, *, salt: str | None = None, hint: Hint = NO_HINT) -> TokenReader:
        """The prompt is sent, named by its parts."""
        asked = GenerateRequest(id=RequestId(name), tokens=tokens, sampling=Sampling(max_tokens=4), cache_salt=salt)
        _, parts = self.columns.prompt_and_parts(tokens, 16, scope_bytes(None, salt))
        return TokenReader(self.connection, asked, hint=hint, parts=parts)

    async def answered(self, name: str, tokens: bytes, *, salt: str | None = None) -> None:
        """The prompt is sent, the engine sees all of it and gives its only token."""
        self.host.engine.script(name).put_nowait(Output(tokens=(7,), cached_tokens=0, finish="stop"))
        assert await rest(self.ask(name, tokens, salt=salt)) == [7]
        assert self.seen(name) == [tokens]

    def seen(self, name: str) -> list[bytes]:
        """The prompts that the engine saw under this id."""
        return [each.tokens for each in self.host.engine.asked if each.id == name]

    def asks(self, name: str) -> list[tuple[int, int]]:
        """Known parts and bytes of tokens of each frame that asked for this request."""
        return [
            (each.parts.known if each.parts else -1, len(each.request.tokens))
            for each in self.sent
            if isinstance(each, Generate) and each.request.id == name
        ]

    def forget(self) -> None:
        """The worker keeps nothing any more."""
        self.server.prompts.__init__(self.server.prompts._digests)  # type: ignore[misc]


class Failing(NamedTuple):
    """Receives nothing but the failure of its stream."""

    fail: Callable[[Exception], None]

    def put(self, output: Output) -> None:
        raise AssertionError(output)


Wired = Callable[..., AbstractAsyncContextManager[Wire]]


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Wired:
    @asynccontextmanager
    async def opened(*, keeps_prompts: bool = True, prompts_bytes_max: int = 1 << 26) -> AsyncIterator[Wire]:
        host = ScriptedHost()
        host.keeps_prompts = keeps_prompts
        server = WorkerServer(host, LINK, prompts_bytes_max=prompts_bytes_max)
        name, number = await server.open("127.0.0.1", 0)
        try:
            async with linked(f"{name}:{number}") as (client, _):
                await up(client)
                wire = Wire(server, host, client)

                def encoded(frame: ToWorker | ToReplica) -> bytes:
                    wire.sent.append(frame)
                    return encode_frame(frame)

                monkeypatch.setattr(worker_connection, "encode_frame", encoded)
                yield wire
        finally:
            await server.close()

    return opened


async def test_a_turn_sends_what_is_new_in_it(wired: Wired) -> None:
    """And the tokens behind the last whole part; a short prompt names nothing."""
    async with wired() as it:
        await it.answered("first", FIRST)
        await it.answered("second", SECOND)
        await it.answered("again", SECOND)
        await it.answered("short", TALK[: PART - 4])
        assert it.asks("first") == [(0, len(FIRST))]
        assert it.asks("second") == [(3, PART + 800)]
        assert it.asks("again") == [(4, 800)]
        assert it.asks("short") == [(-1, PART - 4)]


async def test_talks_that_begin_alike_share_their_parts(wired: Wired) -> None:
    async with wired() as it:
        await it.answered("first", FIRST)
        other = TALK[: 2 * PART] + random.Random(2).randbytes(2 * PART)
        await it.answered("other", other)
        assert it.asks("other") == [(2, 2 * PART)]
        assert len(it.server.prompts) == 3 + 2


async def test_another_tenant_names_parts_of_its_own(wired: Wired) -> None:
    """So the time of an ask tells nothing of others."""
    async with wired() as it:
        await it.answered("ours", FIRST, salt="a")
        await it.answered("theirs", FIRST, salt="b")
        assert it.asks("theirs") == [(0, len(FIRST))]


async def test_a_worker_of_the_version_before_gets_whole_prompts(wired: Wired) -> None:
    async with wired(keeps_prompts=False) as it:
        await it.answered("first", FIRST)
        await it.answered("second", SECOND)
        assert it.asks("second") == [(-1, len(SECOND))]


async def test_a_worker_without_the_parts_asks_once(wired: Wired) -> None:
    """Before the request counts as taken; then it has them again."""
    async with wired() as it:
        await it.answered("first", FIRST)
        it.forget()
        await it.answered("second", SECOND)
        assert it.asks("second") == [(3, PART + 800), (0, len(SECOND))]
        await it.answered("again", SECOND)
        assert it.asks("again") == [(4, 800)]
        assert not it.connection._named


async def test_the_oldest_prompts_leave(wired: Wired) -> None:
    """Within the bound; the parts of one prompt from its end."""
    async with wired(prompts_bytes_max=4 * (PART + 400)) as it:
        await it.answered("first", FIRST)
        await it.answered("other", random.Random(2).randbytes(3 * PART))
        assert it.server.prompts.size <= it.server.prompts.bytes_max
        assert len(it.server.prompts) == 4
        await it.answered("start", TALK[: PART + 4])
        assert it.asks("start") == [(1, 4)]
        await it.answered("second", SECOND)
        assert it.asks("second") == [(3, PART + 800), (0, len(SECOND))]


async def test_a_cancelled_request_is_not_sent_again(wired: Wired) -> None:
    """The client hung up while its worker asked for the whole prompt."""
    async with wired() as it:
        await it.answered("first", FIRST)
        it.forget()
        stream = it.ask("second", SECOND)
        stream.close()
        await it.answered("third", TALK[: 5 * PART])
        assert it.asks("second") == [(3, PART + 800)]
        assert it.seen("second") == []
        assert it.server.streams == 0
        assert not any(connection._asked for connection in it.server._connections)


async def test_a_connection_that_is_lost_in_the_middle_of_an_ask(wired: Wired) -> None:
    """Ends the attempt as at any other time; the next connection begins with whole prompts."""
    async with wired() as it:
        await it.answered("first", FIRST)
        it.forget()
        stream = it.ask("second", SECOND)
        it.client.cut()
        with pytest.raises(WorkerDisconnected):
            await rest(stream)
        await up(it.client)
        await it.answered("third", SECOND)
        assert it.asks("third") == [(0, len(SECOND))]


async def test_a_worker_that_declined_was_sent_nothing(wired: Wired) -> None:
    """What it did not read it does not keep: the next turn does not name it."""
    async with wired() as it, linked(it.server.address) as (other, _):
        await up(other)
        asked = GenerateRequest(id=RequestId("busy"), tokens=bytes(64), sampling=Sampling(max_tokens=4))
        assert other.connection is not None
        TokenReader(other.connection, asked, hint=Hint(prefill_tokens=8192))
        await eventually(lambda: it.server.streams == 1, "it computes for another front end")
        with pytest.raises(WorkerDeclined):
            await rest(it.ask("first", FIRST, hint=Hint(prefill_tokens=8192, if_free=True)))
        await it.answered("second", SECOND)
        assert it.asks("second") == [(0, len(SECOND))]


async def test_a_worker_that_began_to_drain_in_the_middle_of_an_ask(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuses the whole prompt as any other."""
    async with wired() as it:
        await it.answered("first", FIRST)
        it.forget()
        connection, send_whole = it.connection, it.connection._send_whole

        def asked(number: int) -> None:
            it.server.draining = True
            send_whole(number)

        monkeypatch.setattr(connection, "_send_whole", asked)
        stream = it.ask("second", SECOND)
        with pytest.raises(WorkerDisconnected, match="draining"):
            await rest(stream)
        assert it.seen("second") == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"end": bytes(16)}, "another one than its digest says"),
        ({"size": 0}, "4 parts of 0 bytes are no start of a prompt"),
        ({"size": 6}, "4 parts of 6 bytes are no start of a prompt"),
        ({"known": -1}, "-1 parts of 16384 bytes are no start of a prompt"),
        ({"known": 0, "before": bytes(16)}, "another scope"),
    ],
)
async def test_no_engine_sees_a_prompt_with_another_digest(wired: Wired, change: dict[str, object], why: str) -> None:
    async with wired() as it:
        await it.answered("second", SECOND)
        _, parts = it.columns.prompt_and_parts(SECOND, 16)
        assert parts is not None
        names = msgspec.structs.replace(PromptParts(parts.size, 4, parts.before(4), parts.end), **change)
        asked = GenerateRequest(id=RequestId("wrong"), tokens=SECOND[4 * PART :], sampling=Sampling(max_tokens=4))
        ended: list[Exception] = []
        it.connection.streams[77] = Failing(ended.append)
        it.connection.send(encode_frame(Generate(stream=77, model="sim", request=asked, parts=names)))
        await eventually(lambda: bool(ended), "it failed")
        assert why in str(ended[0])
        assert it.seen("wrong") == []


async def test_parts_of_another_scope_are_not_taken(wired: Wired) -> None:
    """A front end that named a tenant's parts in front of another tenant's request would be refused."""
    async with wired() as it:
        await it.answered("ours", FIRST, salt="a")
        _, parts = it.columns.prompt_and_parts(SECOND, 16, scope_bytes(None, "a"))
        asked = GenerateRequest(id=RequestId("theirs"), tokens=SECOND, sampling=Sampling(max_tokens=4), cache_salt="b")
        with pytest.raises(WorkerDisconnected, match="another scope"):
            await rest(TokenReader(it.connection, asked, parts=parts))
        assert it.seen("theirs") == []


async def test_names_that_are_unknown_twice_end_the_connection(wired: Wired) -> None:
    """A front end that answers an ask by names again would be asked for ever."""
    async with wired() as it:
        await it.answered("first", FIRST)
        it.forget()
        _, parts = it.columns.prompt_and_parts(SECOND, 16)
        assert parts is not None
        names = PromptParts(parts.size, 3, parts.before(3), parts.end)
        asked = GenerateRequest(id=RequestId("r"), tokens=SECOND[3 * PART :], sampling=Sampling(max_tokens=4))
        frame = encode_frame(Generate(stream=77, model="sim", request=asked, parts=names))
        it.connection.send(frame)
        it.connection.send(frame)
        connection = it.connection
        await connection.closed.wait()
        assert connection.refusal == "stream 77 was to have its whole prompt"


async def test_a_prompt_that_is_too_long_whole_fails_when_it_is_asked_for(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wired() as it:
        await it.answered("first", FIRST)
        it.forget()
        monkeypatch.setattr(worker_connection, "FRAME_BYTES_MAX", 2 * PART)
        with pytest.raises(CallerError, match="can be sent to a worker"):
            await rest(it.ask("second", SECOND))
        assert not it.connection.streams
        assert not it.connection._named


async def test_a_connection_remembers_so_many_parts(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used ones are sent again; the bound is that of a worker's store by default."""
    assert SENT_PARTS_MAX * PART == 256 * 2**20
    monkeypatch.setattr(worker_connection, "SENT_PARTS_MAX", 3)
    async with wired() as it:
        await it.answered("first", FIRST)
        await it.answered("other", random.Random(2).randbytes(2 * PART))
        await it.answered("second", SECOND)
        assert it.asks("second") == [(1, len(SECOND) - PART)]


def test_the_ask_is_no_answer_to_a_stream_that_is_over() -> None:
    """It may come behind the end that the front end gave the stream."""
    connection = WorkerConnection.__new__(WorkerConnection)
    connection._named, connection.streams = {}, {}
    connection._frame(AskPrompt(stream=5))
