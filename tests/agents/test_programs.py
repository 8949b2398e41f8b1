"""Coding agents' own programs, as they are installed, at work with this deployment."""

from __future__ import annotations

from itertools import pairwise

from api.server.limits import ApiSettings
from tests.agents import fleet, script
from tests.agents.conversation import Conversation, tokens
from tests.agents.program import KILLED
from tests.agents.recorder import Exchange
from tests.fixtures.eventually import eventually

CACHED_MIN = 0.9
FULL = ("context_length_exceeded", "prompt is too long")
"""How each API says that a prompt does not fit."""
STREAM_PING_S = ApiSettings().ping_s
START_S = 60.0
"""A program has asked by then."""
STREAM_S = 1.0
STREAMED_MIN = 20
"""Pieces in which the story comes at least."""


def statuses(exchanges: list[Exchange]) -> set[int | None]:
    return {exchange.status for exchange in exchanges}


async def test_question(conversation: Conversation) -> None:
    """It is answered, with what the model said behind its reasoning, and no request was refused."""
    finished = await conversation.ask(script.QUESTION)
    assert finished.status == 0, finished
    assert script.ANSWER in conversation.program.text(finished), finished
    assert statuses(conversation.recorder.exchanges) == {200}, finished
    assert conversation.turns


async def test_stream(conversation: Conversation) -> None:
    """The answer reaches the program piece by piece while it is made, and the program shows all of it."""
    finished = await conversation.ask(script.STORY, fleet.SLOW)
    assert finished.status == 0, finished
    program = conversation.program
    assert script.story() in " ".join(program.text(finished).split()), finished
    told = conversation.turns[0]
    assert told.answer_headers["content-type"].startswith("text/event-stream")
    assert len(told.chunks) >= STREAMED_MIN
    assert told.chunks[-1][0] - told.chunks[0][0] >= STREAM_S
    pieces = program.pieces(finished)
    if pieces is not None:
        assert len(pieces) >= STREAMED_MIN
        assert "".join(pieces).strip() == script.story()


async def test_loop(conversation: Conversation) -> None:
    """Two calls behind reasoning: the program runs each, files are there, and each turn finds the last one cached."""
    program = conversation.program
    if not program.has_tools:
        await _assert_edits_by_text(conversation)
        return
    finished = await conversation.ask(script.loop(program.name))
    assert finished.status == 0, finished
    assert script.DONE in program.text(finished), finished
    assert conversation.file(script.FIRST).split() == [f"{program}-first-done"]
    assert conversation.file(script.SECOND).split() == [f"{program}-second-done"]
    assert statuses(conversation.recorder.exchanges) == {200}
    turns = conversation.turns[:3]
    assert len(turns) == 3
    for before, after in pairwise(turns):
        was, now = tokens(before), tokens(after)
        assert was is not None
        assert now is not None
        # reasoning and call are in the prompt again as the model wrote them: only what follows is computed
        assert now.cached >= was.prompt + was.output - 2 * fleet.BLOCK, (was, now)


async def _assert_edits_by_text(conversation: Conversation) -> None:
    """A program that offers no tools is told a block of text, and edits the file itself."""
    finished = await conversation.ask(script.EDIT)
    assert finished.status == 0, finished
    assert conversation.file("notes.txt") == script.EDITED
    assert all("tools" not in turn.body for turn in conversation.turns), "it has no loop of tools, yet"


async def test_hang_up(conversation: Conversation) -> None:
    """Killed in the middle of an answer: the request is over everywhere at once, and nothing of it is left."""
    async with conversation.started(script.STORY, fleet.SLOW) as running:
        told = "the middle of an answer"
        await eventually(lambda: any(len(turn.chunks) >= STREAMED_MIN for turn in conversation.turns), told, START_S)
        assert conversation.deployment.state("frontend-0")["in_flight"] >= 1
        finished = await running.kill()
    assert finished.status == KILLED
    await conversation.idle()
    explained = await conversation.explained(conversation.turns[0])
    assert explained["attempts"][-1]["outcome"] == "abort"


async def test_full_context(conversation: Conversation) -> None:
    """The program makes room by a summary before the context is full, and comes to an end."""
    program = conversation.program
    if not program.has_tools:
        await _assert_says_full(conversation, fleet.SMALL_CONTEXT)
        return
    finished = await conversation.ask(script.swell(program.name), fleet.SMALL)
    assert finished.status == 0, finished
    assert script.SWELLED in program.text(finished), finished
    posts = conversation.recorder.posts(program.route)
    assert any(program.compacted(post.body) for post in posts)
    assert statuses(posts) == {200}, "it goes by the tokens that it is told, not by a refusal"
    assert not any(word in post.text for post in posts for word in FULL)


async def _assert_says_full(conversation: Conversation, context: int) -> None:
    """A program of one turn asks once, says that the context is full, and ends."""
    conversation.place.fill(script.NUMBERS_LONG)
    finished = await conversation.ask(script.QUESTION, fleet.SMALL, context)
    assert conversation.program.says_full in finished.out, finished
    (turn,) = conversation.turns
    assert any(word in turn.text for word in FULL)


async def test_context_smaller_than_believed(conversation: Conversation) -> None:
    """A program that is told too large a context learns it from the refusal: it makes room, or names the reason."""
    program = conversation.program
    if not program.has_tools:
        await _assert_says_full(conversation, fleet.CONTEXT)
        return
    finished = await conversation.ask(script.swell(program.name), fleet.SMALL, context=fleet.CONTEXT)
    posts = conversation.recorder.posts(program.route)
    refused = [number for number, post in enumerate(posts) if any(word in post.text for word in FULL)]
    assert refused, finished
    if program.says_full:
        assert finished.status != 0
        assert program.says_full in finished.out, finished
        assert len(refused) == 1, "it does not ask again"
    else:
        assert script.SWELLED in program.text(finished), finished
        assert any(program.compacted(post.body) for post in posts[refused[0] :])


async def test_overload(conversation: Conversation) -> None:
    """A program that is refused for want of room asks again, and has its answer once there is room."""
    program = conversation.program
    async with (
        conversation.crowded(fleet.SLOW, queue_max=0) as leave,
        conversation.started(script.QUESTION, fleet.SLOW) as running,
    ):
        await eventually(lambda: statuses(conversation.turns) - {None, 200}, "a refusal", START_S)
        await leave()
        finished = await running.end()
    assert finished.status == 0, finished
    assert script.ANSWER in program.text(finished), finished
    refused = [turn for turn in conversation.turns if turn.status != 200]
    assert statuses(refused) == {529 if program.route == "/v1/messages" else 503}
    assert all(int(turn.answer_headers["retry-after"]) >= 1 for turn in refused)


async def test_long_wait(conversation: Conversation) -> None:
    """A program whose request is held for long is told that it is, stays, and has its answer."""
    async with (
        conversation.crowded(fleet.SLOW, queue_max=8) as leave,
        conversation.started(script.QUESTION, fleet.SLOW) as running,
    ):
        await eventually(lambda: any(turn.chunks for turn in conversation.turns), "a ping", START_S + STREAM_PING_S)
        waited_s = conversation.turns[0].chunks[0][0] - conversation.turns[0].started_s
        await leave()
        finished = await running.end()
    assert waited_s >= STREAM_PING_S
    assert finished.status == 0, finished
    assert script.ANSWER in conversation.program.text(finished), finished
    assert statuses(conversation.turns) == {200}
    assert "ping" in conversation.turns[0].text


async def test_delegation(conversation: Conversation) -> None:
    """A program's agent below its own is a session of its own in the log, below the one that began it."""
    program = conversation.program
    if not program.has_tools:
        return  # it has no agents below its own
    finished = await conversation.ask(script.delegate(program.name))
    assert finished.status == 0, finished
    assert script.DELEGATED in program.text(finished), finished
    assert statuses(conversation.recorder.exchanges) == {200}
    own, below = conversation.turns[0], conversation.asking(script.task(program.name))
    (session, above), (agent, parent) = [await conversation.session(turn) for turn in (own, below)]
    if program.names_sessions:
        assert session
        assert not above
        assert parent == session
        assert agent not in {"", session}
    else:
        assert {session, above, agent, parent} == {""}


async def test_second_conversation(conversation: Conversation) -> None:
    """It finds what programs of its kind begin with cached, on whichever of two workers that is."""
    finished = await conversation.ask(script.QUESTION)
    assert finished.status == 0, finished
    before = len(conversation.turns)
    finished = await conversation.ask(script.OTHER_QUESTION)
    assert finished.status == 0, finished
    second = conversation.turns[before]
    assert script.OTHER_QUESTION in second.raw.decode()
    head = await conversation.head_tokens(second)
    attempt = (await conversation.explained(second))["attempts"][-1]
    assert len(attempt["candidates"]) == 2
    assert attempt["real_cached_tokens"] == attempt["predicted_cached_tokens"]
    assert CACHED_MIN * head <= attempt["real_cached_tokens"] < attempt["prompt_tokens"]
    usage = tokens(second)
    if usage is not None:
        assert usage.cached == attempt["real_cached_tokens"], "the program is told so, too"
