"""Kills of attached servers: `vllm serve` killed with SIGKILL under streams and started again, round after round.

python -m tests.chaos.server_kills --rounds 10 --streams 16 --json server_kills.json

Two stock servers on this machine's CPU with the built-in tiny model, and a deployment with both as engines of its
workers. Each round has streams whose text is known from the server itself; one of the two servers is killed once every
stream has begun. After its next start the streams' prompts are asked again, one at a time, so that each decision rests
on what both caches hold then. The exit status is 1 if any law was broken. It takes about a minute for each round.
"""

# ruff: noqa: T201 - a command for a terminal
from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.engines.tiny_model import ensure_tiny_checkpoint
from bench.streamed import Streamed, ask, completion
from core.events import RequestFinished, RequestMigrated, RequestRouted
from core.events.routing import CACHED_UNKNOWN
from core.ids import new_id
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually
from tests.fixtures.vllm_server import BLOCK_SIZE, VllmServer

MODEL = "tiny"
PROMPT_TOKENS = 5 * BLOCK_SIZE
COMMON_TOKENS = 2 * BLOCK_SIZE
"""All prompts of a round begin alike for so many tokens."""
TOKENS_MAX = 1000
"""Tokens of prompts are below this."""
ANSWER_TOKENS = 300
FOLLOW_UP_TOKENS = 4
BLOCKS = 513
"""Blocks of each server: all streams of a round fit into one, so that no block is evicted while they run."""
SLOTS = 32
REJOIN_S = 2.0
"""Bound on the time from the server's first answer to its worker's registration."""
REJOIN_WAIT_S = 60.0


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.server_kills", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--json", type=Path, dest="report", help="write the findings there")
    return parser.parse_args()


class ServerKills:
    """Two servers, the deployment in front of them, and the findings so far."""

    def __init__(self, running: Running, servers: Sequence[VllmServer], streams: int) -> None:
        self._running = running
        self._servers = servers
        self._streams = streams
        self._port = int(running.url.rpartition(":")[2])
        self._asked_alone: set[str] = set()
        """Requests that ran with no other beside them."""
        self.wrong: list[str] = []
        self.rejoined_s: list[float] = []

    async def round(self, number: int) -> None:
        """One server was killed under streams and is attached again."""
        victim = self._servers[number % 2]
        worker = f"gpu-{number % 2}"
        prompts = [_prompt(number, stream) for stream in range(self._streams)]
        expected = [answer.tokens for answer in await self._ask(victim.port, prompts, ANSWER_TOKENS, direct=True)]
        before = self._running.part(worker)["id"]
        asking = asyncio.create_task(self._ask(self._port, prompts, ANSWER_TOKENS))
        await eventually(lambda: self._running.state(worker)["requests"] >= self._streams // 4, "streams at both")
        await asyncio.sleep(0.5)  # tokens of each are on their way: the kill is in the middle of answers
        await asyncio.to_thread(victim.kill)
        for stream, (answer, tokens) in enumerate(zip(await asking, expected, strict=True)):
            if not answer.complete or answer.tokens != tokens:
                self.wrong.append(f"round {number}, stream {stream}: {_difference(answer, tokens)}")
        victim.start()
        await victim.ready()
        answered_s = time.monotonic()
        await eventually(lambda: self._joined(worker, before), "the worker of the next start", REJOIN_WAIT_S)
        self.rejoined_s.append(time.monotonic() - answered_s)
        await eventually(lambda: self._running.state(worker)["blocks"] == 1, "the trial's block alone")
        await self._running.assert_index_is_cache()
        for prompt, tokens in zip(prompts, expected, strict=True):
            (answer,) = await self._ask(self._port, [prompt], FOLLOW_UP_TOKENS)
            if answer.tokens != tokens[:FOLLOW_UP_TOKENS]:
                self.wrong.append(f"round {number}, a follow-up: {_difference(answer, tokens[:FOLLOW_UP_TOKENS])}")
        await self._running.assert_index_is_cache()

    def _joined(self, worker: str, before: str) -> bool:
        return self._running.part(worker).get("id") not in {None, before}

    async def _ask(
        self, port: int, prompts: Sequence[Sequence[int]], tokens: int, *, direct: bool = False
    ) -> list[Streamed]:
        """The answers; those of the server itself under a salt, so that nothing of them is cached for others."""
        more: dict[str, Any] = {"return_token_ids": True}
        if direct:
            more["cache_salt"] = new_id()
        ids = [new_id() for _ in prompts]
        bodies = [completion(MODEL, prompt, tokens, **more) for prompt in prompts]
        answers = await asyncio.gather(*(ask(port, body, name) for body, name in zip(bodies, ids, strict=True)))
        if len(prompts) == 1 and not direct:
            self._asked_alone.update(ids)
        return list(answers)

    async def findings(self) -> dict[str, Any]:
        """Figures of all rounds, with every law that was broken."""
        routing = await self._running.events("routing")
        routed = {(event.request, event.attempt): event for event in routing if isinstance(event, RequestRouted)}
        finished = [event for event in routing if isinstance(event, RequestFinished)]
        migrated = [event for event in routing if isinstance(event, RequestMigrated)]
        known = [event for event in finished if event.cached_tokens != CACHED_UNKNOWN]
        alone = [event for event in known if event.request in self._asked_alone]
        stale = [
            f"{event.request}: {routed[event.request, event.attempt].predicted_cached_tokens} predicted, "
            f"{event.cached_tokens} cached"
            for event in known
            if routed[event.request, event.attempt].predicted_cached_tokens > event.cached_tokens
        ]
        unequal = [
            f"{event.request}: {routed[event.request, event.attempt].predicted_cached_tokens} predicted, "
            f"{event.cached_tokens} cached"
            for event in alone
            if routed[event.request, event.attempt].predicted_cached_tokens != event.cached_tokens
        ]
        verified = await asyncio.to_thread(contrail, "replay", "verify", "--data", str(self._running.data))
        if verified.returncode:
            self.wrong.append(f"replay verify: {verified.stdout[-400:]}{verified.stderr[-400:]}")
        self.wrong += [f"a stale overlap: {text}" for text in stale]
        self.wrong += [f"one at a time: {text}" for text in unequal]
        late = [took_s for took_s in self.rejoined_s if took_s > REJOIN_S]
        self.wrong += [f"a worker joined {took_s:.1f} s after its server answered" for took_s in late]
        if not migrated:
            self.wrong.append("no request was migrated: the kills hit nothing")
        return {
            "wrong": self.wrong,
            "decisions": len(routed),
            "migrations": len(migrated),
            "requests_migrated": len({event.request for event in migrated}),
            "with_known_cached_tokens": len(known),
            "asked_alone": len(alone),
            "asked_alone_cached_tokens": sum(event.cached_tokens for event in alone),
            "rejoined_s": [round(took_s, 2) for took_s in self.rejoined_s],
            "verify": verified.stdout.strip().splitlines(),
        }


def _prompt(number: int, stream: int) -> list[int]:
    """Common at its begin to all streams of the round; equal calls give equal prompts."""
    common = [(7 * number + at) % TOKENS_MAX for at in range(COMMON_TOKENS)]
    own = [(101 * number + 53 * stream + 11 * at) % TOKENS_MAX for at in range(PROMPT_TOKENS - COMMON_TOKENS)]
    return [*common, *own]


def _difference(answer: Streamed, tokens: Sequence[int]) -> str:
    if not answer.complete:
        return f"broken off behind {len(answer.tokens)} tokens"
    at = next((at for at, pair in enumerate(zip(answer.tokens, tokens, strict=False)) if pair[0] != pair[1]), None)
    return f"{len(answer.tokens)} tokens instead of {len(tokens)}" if at is None else f"another token at {at}"


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The findings of all rounds; servers and deployment have ended."""
    with tempfile.TemporaryDirectory(prefix="contrail-server-kills-") as folder:
        model = ensure_tiny_checkpoint(Path(folder, MODEL), lambda *_: None)
        flags = ("--enable-prompt-tokens-details", "--num-gpu-blocks-override", str(BLOCKS))
        servers = [VllmServer(model, *flags) for _ in range(2)]
        try:
            for server in servers:
                server.start()
            await asyncio.gather(*(server.ready() for server in servers))
            attach = {"urls": [server.url for server in servers], "slots": SLOTS}
            group = {"name": "gpu", "served_name": MODEL, "attach": attach}
            file = Path(folder, "up.yaml")
            file.write_text(json.dumps({"version": 1, "workers": [group]}))
            async with up(Path(folder, "data"), "-f", str(file)) as running:
                kills = ServerKills(running, servers, options.streams)
                for number in range(options.rounds):
                    await kills.round(number)
                    print(
                        f"round {number}: joined after {kills.rejoined_s[-1]:.2f} s, {len(kills.wrong)} wrong",
                        flush=True,
                    )
                return await kills.findings()
        finally:
            for server in servers:
                await asyncio.to_thread(server.close)


def main() -> int:
    """The exit status."""
    options = arguments()
    findings = asyncio.run(run(options))
    text = json.dumps({"rounds": options.rounds, "streams": options.streams, **findings}, indent=1)
    print(text)
    if options.report:
        options.report.write_text(text + "\n")
    return 1 if findings["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
