"""Kills of attached servers: `vllm serve` killed with SIGKILL under streams and started again, round after round.

python -m tests.chaos.server_kills --rounds 10 --streams 16 --json server_kills.json

Two stock servers on this machine's CPU with the built-in tiny model, and a deployment with both as engines of its
workers. Each round has streams whose tokens are known from the server itself, and whose prompts begin with blocks that
a worker has cached. One of the two servers is killed in the middle of the answers. After its next start the prompts are
asked again, so that each decision rests on what both caches hold then. The exit status is 1 if a law was broken. A
round takes some 30 s on two idle cores, and minutes on busy ones.
"""

# ruff: noqa: T201 - a command for a terminal
from __future__ import annotations

import argparse
import asyncio
import json
import random
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
CACHED_TOKENS = 2 * BLOCK_SIZE
"""So many tokens of each prompt are cached at a worker before its stream. No two prompts begin alike: an overlap with a
prompt that is still being computed would be predicted, too."""
STRIDE = 64
"""First tokens of a round's prompts; more streams than this are refused."""
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
    options = parser.parse_args()
    if not 1 <= options.streams <= STRIDE:
        parser.error(f"--streams takes 1 to {STRIDE}")
    return options


class ServerKills:
    """Two servers, the deployment in front of them, and the findings so far."""

    def __init__(self, running: Running, servers: Sequence[VllmServer], streams: int) -> None:
        self._running = running
        self._servers = servers
        self._streams = streams
        self._port = int(running.url.rpartition(":")[2])
        self.wrong: list[str] = []
        self.rejoined_s: list[float] = []

    async def round(self, number: int) -> None:
        """One server was killed under streams and is attached again."""
        victim = self._servers[number % 2]
        worker = f"gpu-{number % 2}"
        prompts = [_prompt(number, stream) for stream in range(self._streams)]
        expected = [answer.tokens for answer in await self._ask(victim.port, prompts, ANSWER_TOKENS, direct=True)]
        await self._ask(self._port, [prompt[:CACHED_TOKENS] for prompt in prompts], 1)
        await self._running.assert_index_is_cache()
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
        bodies = [completion(MODEL, prompt, tokens, **more) for prompt in prompts]
        return list(await asyncio.gather(*(ask(port, body, new_id()) for body in bodies)))

    async def findings(self) -> dict[str, Any]:
        """Figures of all rounds, with every law that was broken."""
        routing = await self._running.events("routing")
        routed = {(event.request, event.attempt): event for event in routing if isinstance(event, RequestRouted)}
        finished = [event for event in routing if isinstance(event, RequestFinished)]
        migrated = [event for event in routing if isinstance(event, RequestMigrated)]
        # an attempt that was killed before its first token ends with 0: nothing was read from a cache
        known = [event for event in finished if event.cached_tokens != CACHED_UNKNOWN and event.ttft_ms >= 0]
        pairs = [(routed[event.request, event.attempt].predicted_cached_tokens, event.cached_tokens) for event in known]
        verified = await asyncio.to_thread(contrail, "replay", "verify", "--data", str(self._running.data))
        if verified.returncode:
            self.wrong.append(f"replay verify: {verified.stdout[-400:]}{verified.stderr[-400:]}")
        self.wrong += [f"{told} tokens predicted, {found} cached" for told, found in pairs if told != found]
        late = [took_s for took_s in self.rejoined_s if took_s > REJOIN_S]
        self.wrong += [f"a worker joined {took_s:.1f} s after its server answered" for took_s in late]
        if not migrated:
            self.wrong.append("no request was migrated: the kills hit nothing")
        return {
            "wrong": self.wrong,
            "decisions": len(routed),
            "attempts_without_a_token": sum(event.ttft_ms < 0 for event in finished),
            "migrations": len(migrated),
            "requests_migrated": len({event.request for event in migrated}),
            "with_known_cached_tokens": len(known),
            "cached_tokens": sum(found for _, found in pairs),
            "rejoined_s": [round(took_s, 2) for took_s in self.rejoined_s],
            "verify": verified.stdout.strip().splitlines(),
        }


def _prompt(number: int, stream: int) -> list[int]:
    """Equal calls give equal prompts; others begin with another token."""
    dice = random.Random(number * PROMPT_TOKENS + stream)
    return [(number * STRIDE + stream) % TOKENS_MAX, *(dice.randrange(TOKENS_MAX) for _ in range(PROMPT_TOKENS - 1))]


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
