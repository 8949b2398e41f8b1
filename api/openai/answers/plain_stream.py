"""PlainStream: the stream of one choice that is nothing but text, written in the turn of the loop in which its tokens
come: every token passes here.

While the client is slower than its worker, outputs are gathered, and a task writes them as the client takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from orjson import dumps

from actors.transport.output_buffer import OutputBuffer
from api.openai.answers.answering import TokenWatch, broken_off
from api.openai.answers.choice import Choice
from api.openai.answers.sse import PING, Writer
from api.openai.backend import Backend
from api.openai.heartbeat import Heartbeat
from core.errors import ContrailError
from core.generation import Output


class Client(Protocol):
    """Who the stream is for (`api.server.exchange`): at once if that can be, else as the client reads."""

    started: bool

    def write_now(self, piece: bytes) -> bool:
        """False, and nothing is done, if the client must be waited for."""

    def writing(self) -> Callable[[bytes], bool]:
        """`write_now` in shorter, for a stream that this has begun."""

    def close_now(self, piece: bytes) -> bool:
        """The same, with the stream's last piece."""

    def ping(self, make: Callable[[], bytes]) -> None:
        """What `make` returns is on its way, and the stream has begun, unless the client must be waited for."""

    async def open_stream(self) -> None:
        """The stream has begun."""

    async def write(self, piece: bytes) -> None:
        """Waits for the client."""

    async def close_stream(self, piece: bytes) -> None:
        """The same, with the stream's last piece."""


class PlainStream:
    """One request's. It begins with the first output: errors before it have a status of their own."""

    __slots__ = (
        "_after", "_before", "_choice", "_client", "_held", "_opening", "_ping_s", "_transcript", "_waits", "_watch",
        "_write", "_writer",
    )  # fmt: skip

    def __init__(self, client: Client, choice: Choice, writer: Writer, watch: TokenWatch, ping_s: float) -> None:
        """`ping_s` is how long nothing may be written until a ping is."""
        self._client = client
        self._ping_s = ping_s
        self._choice = choice
        self._transcript = choice.transcript
        self._writer = writer
        self._watch = watch
        self._opening = writer.opening()
        self._before, self._after = writer.around_text
        self._write: Callable[[bytes], bool] | None = None
        """There once the stream has begun."""
        self._held = OutputBuffer()
        """What came while the client was waited for."""
        self._waits: asyncio.Task[None] | None = None
        """Writes what the client must be waited for; None while there is no such thing."""

    def __repr__(self) -> str:
        return f"<PlainStream of {self._choice!r}>"

    async def run(self, backend: Backend) -> None:
        """The answer has been written, to its end. Raises what the backend raises, once all before it was written."""
        try:
            with Heartbeat(self._ping_s, self._tokens, self._ping):
                await backend.run(self._writer.accepted.model, self._choice.request, self.take, self._choice.ended)
            await self._all_written()
        except ContrailError:
            await self._all_written()
            raise
        finally:
            if self._waits is not None:
                self._waits.cancel()
        if self._transcript.finish is None:
            raise broken_off()

    def take(self, output: Output) -> bool:
        """The output's text has left, or will as soon as the client takes it; whether there is more to come."""
        self._watch.tokens()
        if self._waits is not None:
            self._held.add(output)
            if self._waits.done() and not self._waits.cancelled():
                self._waits.result()  # raises here what failed there: the worker stops, and the log knows why
            return self._transcript.finish is None and not self._waits.done()
        transcript, write = self._transcript, self._write
        text = transcript.push(output)
        if write is None or transcript.finish is not None:
            return self._take_outer(text)
        if text:  # every token passes here
            piece = self._before + dumps(text) + self._after
            if not write(piece):
                self._waits = asyncio.create_task(self._wait(piece))
        return True

    def _tokens(self) -> int:
        """Of each, something is written."""
        return self._transcript.completion_tokens

    def _ping(self) -> None:
        if self._waits is None:
            self._client.ping(self._opened)

    def _opened(self) -> bytes:
        opening, self._opening = self._opening, b""
        return opening + PING

    def _take_outer(self, text: str) -> bool:
        """The same of the stream's first events, and its last ones."""
        client, piece = self._client, self._piece(text)
        over = self._transcript.finish is not None
        if not piece:  # what came is no text yet
            return True
        if not (client.close_now(piece) if over else client.write_now(piece)):
            self._waits = asyncio.create_task(self._wait(piece))
        elif not over:
            self._write = client.writing()
        return not over

    def _piece(self, text: str) -> bytes:
        """The events for this text, the stream's first and last ones included."""
        transcript, writer = self._transcript, self._writer
        piece = self._before + dumps(text) + self._after if text else b""
        if self._opening:
            piece, self._opening = self._opening + piece, b""
        if transcript.finish is None:
            return piece
        ending = writer.ending(transcript.finish, transcript.stop_reason)
        return piece + ending + writer.closing(writer.accepted.usage())

    async def _wait(self, piece: bytes) -> None:
        if not self._client.started:
            await self._client.open_stream()
        while self._transcript.finish is None:
            if piece:  # what came may be no text yet
                await self._client.write(piece)
            if not self._held:
                self._waits = None
                return
            piece = self._piece(self._transcript.push(self._held.take()))
        await self._client.close_stream(piece)

    async def _all_written(self) -> None:
        if self._waits is not None:
            await self._waits
