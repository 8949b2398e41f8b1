"""One program before the deployment, and what can be known of its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.agents import fleet, script
from tests.agents.program import Finished, Program, Target, Workplace
from tests.agents.program import Running as Started
from tests.agents.recorder import Exchange, Recorder
from tests.e2e.deployment import Running, contrail
from tests.fixtures.eventually import eventually


class Tokens(NamedTuple):
    """What a request took, as its answer says."""

    prompt: int
    cached: int
    output: int


class Conversation:
    """A program, its repository and home, and what passed between it and the deployment."""

    def __init__(self, deployment: Running, program: Program, recorder: Recorder, folder: Path) -> None:
        self.deployment = deployment
        self.program = program
        self.recorder = recorder
        self.place = Workplace(folder / "place")

    def target(self, model: str, context: int | None = None) -> Target:
        """The model behind the recorder, with the context that the program is told: the right one if none is given."""
        right = fleet.SMALL_CONTEXT if model == fleet.SMALL else fleet.CONTEXT
        return Target(url=self.recorder.url, model=model, context=context or right)

    async def ask(self, prompt: str, model: str = fleet.QUICK, context: int | None = None) -> Finished:
        """A new conversation of this one prompt, to its end; the program reached nothing but the deployment."""
        finished = await self.program.run(self.place, self.target(model, context), prompt)
        assert self.recorder.elsewhere == set(), finished
        assert not self.recorder.in_circles, finished
        return finished

    def started(self, prompt: str, model: str = fleet.QUICK) -> AbstractAsyncContextManager[Started]:
        """The same, under way."""
        return self.program.started(self.place, self.target(model), prompt)

    @asynccontextmanager
    async def crowded(self, model: str, queue_max: int) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """The model's one worker is busy, and so many may wait for it, until the function given is called."""
        await self._settings("set", "active_max", "1", "queue_max", str(queue_max))
        stream = await self.deployment.openai.chat.completions.create(
            model=model, messages=[{"role": "user", "content": script.LONG_STORY}], stream=True
        )
        try:
            await anext(aiter(stream))
            yield stream.close
        finally:
            await stream.close()
            await self._settings("unset", "active_max", "queue_max")

    async def _settings(self, *words: str) -> None:
        done = await asyncio.to_thread(contrail, "settings", *words, "--data", str(self.deployment.data))
        assert done.returncode == 0, done.stderr

    @property
    def turns(self) -> list[Exchange]:
        """Its requests that the model was offered tools in, or of a program without tools all."""
        posts = self.recorder.posts(self.program.route)
        return [post for post in posts if not self.program.has_tools or post.body.get("tools")]

    def asking(self, prompt: str) -> Exchange:
        """The first of its requests in which the user says this."""
        return next(turn for turn in self.turns if prompt in str(_users(turn.body)))

    async def session(self, exchange: Exchange) -> tuple[str, str]:
        """Under which keyed hashes the log has the request's session, and that one's parent."""
        told = (await self.explained(exchange))["attempts"][0]
        return told["session_key"], told["session_parent"]

    def file(self, name: str) -> str:
        """What a file of the repository holds; empty if there is none."""
        file = self.place.repository / name
        return file.read_text() if file.is_file() else ""

    async def explained(self, exchange: Exchange) -> dict[str, Any]:
        """What the log says of a request, once its end is there."""
        request = exchange.answer_headers["x-request-id"]
        found: dict[str, Any] = {}

        def ended() -> bool:
            said = contrail("explain", request, "--data", str(self.deployment.data), "--json")
            found.update(json.loads(said.stdout) if said.returncode == 0 else {})
            return bool(found) and bool(found["attempts"][-1]["outcome"])

        async with asyncio.timeout(20):
            while not await asyncio.to_thread(ended):
                await asyncio.sleep(0.1)
        return found

    async def head_tokens(self, exchange: Exchange) -> int:
        """What the request has before the question: its tokens, or all of them where the question comes last."""
        asked = self.program.counting(exchange.body)
        if asked is None:
            return int((await self.explained(exchange))["attempts"][-1]["prompt_tokens"])
        path, body = asked
        answer = await self.deployment.openai.with_options(base_url=self.deployment.url).post(
            path, body=body, cast_to=dict[str, Any]
        )
        return int(answer.get("input_tokens") or answer["count"])

    async def idle(self) -> None:
        """Nothing of any request is left: not in the front end, not at a worker, and the index is what is cached."""
        await eventually(lambda: not self.deployment.state("frontend-0")["in_flight"], "no request in flight", 10)
        await self.deployment.assert_index_is_cache()


def _users(body: dict[str, Any]) -> list[Any]:
    messages: list[dict[str, Any]] = body.get("messages") or body["input"]
    return [message["content"] for message in messages if message.get("role") == "user"]


def tokens(exchange: Exchange) -> Tokens | None:
    """By the usage that the answer told, in whichever dialect; None if it told none."""
    prompt = cached = output = None
    for event in exchange.events:
        told = event.get("response") or event.get("message") or event
        usage = told.get("usage")
        if usage is None:
            continue
        if "prompt_tokens" in usage:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
        elif "input_tokens_details" in usage:
            cached = usage["input_tokens_details"]["cached_tokens"]
            prompt, output = usage["input_tokens"], usage["output_tokens"]
        elif "cache_read_input_tokens" in usage:
            cached = usage["cache_read_input_tokens"]
            prompt, output = usage["input_tokens"] + cached, usage["output_tokens"]
    if prompt is None or cached is None or output is None:
        return None
    return Tokens(prompt, cached, output)
