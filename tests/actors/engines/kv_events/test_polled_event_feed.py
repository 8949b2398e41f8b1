"""Events that a server gives when it is asked: each once, in order, or a gap that is told."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

import pytest

from actors.engines.kv_events import polled_event_feed
from actors.engines.kv_events.polled_event_feed import PolledEventFeed
from core.errors import EngineDead, PeerError, Unavailable
from tests.fixtures.eventually import eventually


class Server:
    """`answers` are given in turn; then it has no events."""

    def __init__(self) -> None:
        self.answers: deque[bytes | PeerError] = deque()
        self.asked = 0
        self.taken: list[bytes] = []
        self.gaps: list[str] = []
        self.endless = False
        self.feed = PolledEventFeed(self._ask, self._take, self.gaps.append)

    async def _ask(self) -> bytes:
        self.asked += 1
        answer = self.answers.popleft() if self.answers else b"[1]" if self.endless else b"[]\n"
        if isinstance(answer, PeerError):
            raise answer
        return answer

    def _take(self, answer: bytes) -> None:
        if answer == b"anew":
            raise EngineDead("begins anew")
        self.taken.append(answer)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(polled_event_feed, "POLL_EVERY_S", 0.001)
    server = Server()
    yield server
    await server.feed.stop()


async def test_follows(server: Server) -> None:
    """Answers with events are taken in order, those without are not."""
    server.answers += [b"[1]", b"[]", b"[2]"]
    server.feed.start()
    await eventually(lambda: server.taken == [b"[1]", b"[2]"], "the events")
    server.feed.check()
    await server.feed.stop()
    before = server.asked
    await server.feed.stop()
    assert (server.asked, server.gaps) == (before, [])


async def test_an_answer_that_is_lost(server: Server) -> None:
    """It is one gap, however often it fails, and the next ones are taken."""
    server.answers += [PeerError("away"), PeerError("away"), b"[1]", PeerError("away"), b"[2]"]
    server.feed.start()
    await eventually(lambda: server.taken == [b"[1]", b"[2]"], "the events")
    assert server.gaps == ["cache events may have been lost: away"] * 2
    await server.feed.stop()
    server.answers.append(PeerError("again"))
    with pytest.raises(PeerError, match="again"):
        await server.feed.reread()


async def test_catches_up(server: Server) -> None:
    """Until two answers in a row had nothing; not for ever."""
    server.answers += [b"[1]", b"[]", b"[2]", b"[]", b"[]", b"[3]"]
    await server.feed.catch_up()
    assert server.taken == [b"[1]", b"[2]"]
    server.endless = True
    with pytest.raises(Unavailable, match="through 300 answers"):
        await server.feed.catch_up()


async def test_a_new_start(server: Server) -> None:
    """It ends the feed, with its reason."""
    server.answers.append(b"anew")
    server.feed.start()

    def dead() -> bool:
        try:
            server.feed.check()
        except EngineDead as error:
            return str(error) == "begins anew"
        return False

    await eventually(dead, "the end")
    with pytest.raises(EngineDead, match="begins anew"):
        await server.feed.catch_up()
