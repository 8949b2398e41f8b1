"""attached: what Contrail adds in front of a running `vllm serve`, beside asking that server directly.

`python -m bench.attached --json FILE`. One stock server on this machine's CPU with the built-in tiny model, and a
deployment with that server as its only worker's engine. The same prompts go both ways in turn, each under a salt of its
own, so that nothing is cached: one at a time for the first token, some at once for tokens per second. Before that, an
attached engine in this process stands in the deployment's place: it is the part inside the worker. All processes share
the machine's cores. Other tokens than the server's own end the program.

Clients also hang up in the middle of answers: measured is the time until the server's own numbers have no request.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from actors.engines.attached.attached_engine import AttachedEngine
from actors.engines.attached.server_profile import ServerOptions
from actors.engines.attached.vllm_profile import read_metrics
from actors.engines.tiny_model import ensure_tiny_checkpoint
from actors.transport.server_client import ServerAddress, ServerClient
from bench.deployed import Deployed, deployed
from bench.figures import Figure, main, refuse
from bench.streamed import Streamed, ask, completion
from core.generation import GenerateRequest, Sampling
from core.ids import RequestId, new_id
from core.prompt import tokens_to_bytes
from tests.fixtures.vllm_server import VllmServer

MODEL = "tiny"
PROMPT_TOKENS = 500
TOKENS_MAX = 1000
"""Tokens of prompts are drawn below this."""
ALONE, ALONE_QUICK = 60, 12
"""Pairs of requests one at a time …"""
ALONE_TOKENS = 16
ROUNDS, ROUNDS_QUICK = 12, 3
"""… and of rounds of requests at once."""
STREAMS, STREAM_TOKENS = 8, 128
IDLE_S = 10.0
"""Time without requests, to know what the parts spend then."""
HANG_UPS, HANG_UPS_QUICK = 30, 4
"""Pairs of answers whose client hangs up after HEARD_TOKENS …"""
HEARD_TOKENS, LONG_TOKENS = 4, 1500
"""… of this many tokens, some seconds long."""
GONE_S = 20.0
"""Bound on the time until the server has no request."""
WARM = 4
"""Pairs before the first that counts."""
MILLI = 1000


class Pair(NamedTuple):
    """The same prompts, asked both ways."""

    direct: list[Streamed]
    through: list[Streamed]


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """First tokens, processor time, and tokens per second."""
    alone, rounds = (ALONE_QUICK, ROUNDS_QUICK) if options.quick else (ALONE, ROUNDS)
    hang_ups = HANG_UPS_QUICK if options.quick else HANG_UPS
    with (
        TemporaryDirectory() as folder,
        _server(ensure_tiny_checkpoint(Path(folder, MODEL), lambda *_: None)) as server,
    ):
        inside = asyncio.run(_engine_pairs(server, WARM + alone))[WARM:]
        direct, through = median(first_ms for first_ms, _ in inside), median(answer.first_ms for _, answer in inside)
        what = f"{through - direct:.1f} ms more; {alone} pairs of {PROMPT_TOKENS} tokens"
        yield Figure("first token, by the attached engine alone", through, "ms", direct, note=what)
        spent_ms = MILLI * median(answer.spent_s for _, answer in inside)
        what = f"a request of {ALONE_TOKENS} tokens"
        yield Figure("processor time of the attached engine", spent_ms, "ms", note=what)
        group = {"name": "gpu", "served_name": MODEL, "count": 1, "attach": {"urls": [server.url], "slots": 32}}
        with deployed({"workers": [group]}) as it:
            ports = (server.port, it.port)
            asyncio.run(_pairs(ports, WARM, 1, ALONE_TOKENS))
            idle = _spent_s(it, lambda: time.sleep(IDLE_S))
            begun_s = time.monotonic()
            pairs = list[Pair]()
            spent = _spent_s(it, lambda: pairs.extend(asyncio.run(_pairs(ports, alone, 1, ALONE_TOKENS))))
            share = (time.monotonic() - begun_s) / IDLE_S
            direct, through = (median(map(_first_ms, answers)) for answers in zip(*pairs, strict=True))
            what = f"{through - direct:.1f} ms more; {alone} pairs of {PROMPT_TOKENS} tokens"
            yield Figure("first token, one request at a time", through, "ms", direct, note=what)
            for part in ("frontend", "worker"):
                spent_ms = MILLI * (spent[part] - share * idle[part]) / alone
                what = f"a request of {ALONE_TOKENS} tokens; {MILLI * idle[part] / IDLE_S:.0f} ms a second without any"
                yield Figure(f"processor time of the {part}", spent_ms, "ms", note=what)
            pairs = asyncio.run(_pairs(ports, rounds, STREAMS, STREAM_TOKENS))
            direct, through = (median(map(_tokens_per_s, answers)) for answers in zip(*pairs, strict=True))
            what = f"{100 * (through / direct - 1):+.1f} %; {rounds} pairs of rounds"
            yield Figure(f"tokens, {STREAMS} at once", through, "/s", direct, lower_is_better=False, note=what)
            heard = asyncio.run(_hang_up_pairs(server, ports, hang_ups))
            direct, through = (median(times) for times in zip(*heard, strict=True))
            what = f"slowest {max(times[1] for times in heard):.0f} ms; {hang_ups} pairs"
            yield Figure("hang-up heard by the server", through, "ms", direct, note=what)


@contextmanager
def _server(model: Path) -> Iterator[VllmServer]:
    server = VllmServer(model, "--enable-prompt-tokens-details")
    try:
        server.start()
        asyncio.run(server.ready())
        yield server
    finally:
        server.close()


def _first_ms(answers: Sequence[Streamed]) -> float:
    return max(MILLI * (answer.first_s - answer.sent_s) for answer in answers)


def _tokens_per_s(answers: Sequence[Streamed]) -> float:
    took_s = max(answer.end_s for answer in answers) - min(answer.sent_s for answer in answers)
    return sum(answer.output_tokens for answer in answers) / took_s


def _spent_s(it: Deployed, work: Callable[[], object]) -> dict[str, float]:
    """Processor time by kind of part, while the work was done."""
    before = it.cpu_s()
    work()
    return {kind: after_s - before.get(kind, 0.0) for kind, after_s in it.cpu_s().items()}


class EngineAnswer(NamedTuple):
    """The answer of an attached engine in this process."""

    first_ms: float
    """From the request to its first token."""
    spent_s: float
    """Processor time of this process until its end."""
    tokens: tuple[int, ...]


async def _engine_pairs(server: VllmServer, count: int) -> list[tuple[float, EngineAnswer]]:
    """Of the server asked directly, milliseconds to the first token; beside it the attached engine's answer. Each way
    is the first one half of the times."""
    engine = AttachedEngine(MODEL, ServerOptions(server.url, slots=STREAMS))
    await engine.start(lambda _: None)
    dice, pairs = random.Random(0), []
    try:
        for number in range(count):
            prompt = [dice.randrange(TOKENS_MAX) for _ in range(PROMPT_TOKENS)]
            inside = await _ask_engine(engine, prompt) if number % 2 else None
            direct = await _ask_all(server.port, [prompt], ALONE_TOKENS)
            inside = inside or await _ask_engine(engine, prompt)
            if inside.tokens != direct[0].tokens:
                refuse("an answer through the attached engine has other tokens than the server's own")
            pairs.append((_first_ms(direct), inside))
    finally:
        await engine.stop()
    return pairs


async def _ask_engine(engine: AttachedEngine, prompt: Sequence[int]) -> EngineAnswer:
    sampling = Sampling(max_tokens=ALONE_TOKENS, temperature=0.0, ignore_eos=True)
    asked = GenerateRequest(
        id=RequestId(new_id()), tokens=tokens_to_bytes(prompt), sampling=sampling, cache_salt=new_id()
    )
    sent_s, before_s, first_s, tokens = time.perf_counter(), time.process_time(), 0.0, list[int]()
    async for output in engine.generate(asked):
        first_s = first_s or time.perf_counter()
        tokens += output.tokens
    return EngineAnswer(MILLI * (first_s - sent_s), time.process_time() - before_s, tuple(tokens))


async def _pairs(ports: tuple[int, int], count: int, streams: int, tokens: int) -> list[Pair]:
    """Each way is the first one half of the times."""
    dice, pairs = random.Random(streams), []
    for number in range(count):
        prompts = [[dice.randrange(TOKENS_MAX) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]
        first, second = (ports, ports[::-1])[number % 2]
        answers = {port: await _ask_all(port, prompts, tokens) for port in (first, second)}
        pair = Pair(answers[ports[0]], answers[ports[1]])
        if [answer.tokens for answer in pair.direct] != [answer.tokens for answer in pair.through]:
            refuse("an answer through Contrail has other tokens than the server's own")
        pairs.append(pair)
    return pairs


async def _hang_up_pairs(server: VllmServer, ports: tuple[int, int], count: int) -> list[tuple[float, float]]:
    """Milliseconds from the client's hang-up until the server's own numbers have no request, directly and through
    Contrail. Each way is the first one half of the times."""
    dice, client, pairs = random.Random(2), ServerClient(ServerAddress.parse(server.url)), []
    for number in range(count):
        prompt = [dice.randrange(TOKENS_MAX) for _ in range(PROMPT_TOKENS)]
        took = {port: await _hang_up(client, port, prompt) for port in (ports, ports[::-1])[number % 2]}
        pairs.append((took[ports[0]], took[ports[1]]))
    return pairs


async def _hang_up(server: ServerClient, port: int, prompt: Sequence[int]) -> float:
    front = ServerClient(ServerAddress("127.0.0.1", port, tls=False))
    body = completion(MODEL, prompt, LONG_TOKENS, cache_salt=new_id())
    async with front.request("POST", "/v1/completions", body) as answer:
        heard = 0
        async with aclosing(answer.events()) as events:
            async for _ in events:
                heard += 1
                if heard == HEARD_TOKENS:
                    break
    hung_up_s = time.perf_counter()
    if heard < HEARD_TOKENS:
        refuse("an answer ended before its client could hang up")
    async with asyncio.timeout(GONE_S):
        while read_metrics((await server.get("/metrics", GONE_S)).body).numbers.running:
            pass
    return MILLI * (time.perf_counter() - hung_up_s)


async def _ask_all(port: int, prompts: Sequence[Sequence[int]], tokens: int) -> list[Streamed]:
    more = {"cache_salt": new_id(), "return_token_ids": True}
    bodies = [completion(MODEL, prompt, tokens, **more) for prompt in prompts]
    answers = await asyncio.gather(*(ask(port, body, new_id()) for body in bodies))
    for answer in answers:
        if not answer.complete or answer.cached_tokens:
            refuse(f"a request failed, or found its prompt in the cache: {answer}")
    return answers


if __name__ == "__main__":
    main("attached", measure)
