"""frontdoor: what a request and a streamed token cost in front of the workers, beside the peers in the same run.

`python -m bench.frontdoor --json FILE --peer-venvs DIR DIR DIR`. Workers cost nothing and have no cache; the
processor time is that of the front end's process, all that belongs to a request included: HTTP, template,
tokenizing, decision, log. Every request has a system prompt that all share and a user's turn of its own. A token's
is a request's by the tokens that were asked for, however many chunks they came in. A run with a request that failed,
or without answers, ends the program.

The peers' routers pass bytes on: they neither tokenize nor write anything down. Dynamo's front end tokenizes. Its
mocker always makes tokens step by step: a thousand times as fast where ours and the routers' workers give an answer
at once and whole, in its own time where tokens are to come one by one. There it computes prompts, too, some 20 ms a
pass, which no other worker here does: the time to the first token says nothing beside Dynamo, and is not shown.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.engines.tiny_model import ensure_tiny_checkpoint
from bench.figures import MICRO, OURS, Figure, beside, main
from bench.frontdoor_load import FIRST, Found, Job, numbered
from bench.frontdoor_parts import parts
from bench.frontdoor_targets import PEERS, Target, ours
from bench.frontdoor_worker import MODEL, TOGETHER, Pace

BODIES = 2048
"""Then they come again, under other numbers."""
TURN_WORDS = 100
SYLLABLES = [first + second for first in "bcdfghklmnprstvz" for second in "aeiou"]
WORDS = sorted({"".join(random.Random(seed).choices(SYLLABLES, k=1 + seed % 3)) for seed in range(1000)})
TOKENS_OUT = 64
FLOW_TOKENS = 1200
"""Of streams that begin together, to tell what a further token costs."""
FLOW_BEGIN_S = 0.1
"""A stream that ends later is not followed by another."""
FLOW_S = 3.0, 9.0
"""When it is measured, counted from the load's start: all flow by then, and none has ended."""
FLOW_LATE = 1.1
"""They take so much longer than their pace at most."""
AT_ONCE, PACED, IN_STEP = Pace(0.0), Pace(10.0), Pace(10.0, TOGETHER)
STREAMS = 64
CROWD = 128
"""Clients with more prompts than the workers' engines compute at a time, so that requests wait in the router."""
REPEATS, REPEATS_QUICK = 3, 1
SECONDS, SECONDS_QUICK = 5.0, 2.0
PROMPT_TOKENS = 256
"""Of a prompt that is sent as token ids."""
OTHER_PREFILL = ["dynamo"]
"""Peers with workers that take time for a prompt."""

INTERVAL = 4
"""Tokens of a stream that an engine sends at a time, if configured: vLLM's `stream_interval`."""

Opened = Callable[[Pace], AbstractContextManager[Target]]
"""From the pace of tokens to a front door that serves."""


class Measured(NamedTuple):
    """One run of the load."""

    found: Found
    cpu_us: float
    """Of the front door, per request."""

    @property
    def token_us(self) -> float:
        """The same, per token that was asked for."""
        return self.cpu_us / TOKENS_OUT


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """All front doors one after the other, as often as asked, so that what disturbs the machine disturbs all."""
    with tempfile.TemporaryDirectory() as folder:
        ensure_tiny_checkpoint(Path(folder), lambda *_: None)
        doors: dict[str, Opened] = {OURS: lambda pace: ours(folder, pace)}
        doors |= dict(_peers(_venvs(options), folder))
        yield from _plain(doors, options)
        plain = bodies(stream=False, tokenized=False)
        yield from parts(folder, [numbered(body, number) for number, body in enumerate(plain)])
        yield from _alone(doors[OURS], options)
        yield from _streamed(doors, options)
        fours: dict[str, Opened] = {OURS: lambda pace: ours(folder, pace, INTERVAL)}
        runs = _runs(fours, options, PACED, partial(_job, options, clients=STREAMS, stream=True))
        yield from beside(
            f"streamed, engines tell {INTERVAL} at a time, CPU per token", "us", runs, lambda run: run.token_us
        )


def _venvs(options: argparse.Namespace) -> list[Path]:
    """`--peer-venv` names one of them."""
    one = [] if options.peer_venv is None else [options.peer_venv]
    return [*one, *options.peer_venvs]


def _peers(venvs: list[Path], folder: str) -> Iterator[tuple[str, Opened]]:
    for venv in venvs:
        found = [peer for mark, peer in PEERS.items() if _has(venv, mark)]
        if not found:
            sys.exit(f"{venv}: none of {', '.join(PEERS)} is installed there")
        for name, opened in found:
            yield name, lambda pace, opened=opened, venv=venv: opened(venv, folder, pace)  # type: ignore[misc]


def _has(venv: Path, mark: str) -> bool:
    return (venv / "bin" / mark).exists() or any(venv.glob(f"lib/*/site-packages/{mark}/frontend"))


def _plain(doors: dict[str, Opened], options: argparse.Namespace) -> Iterable[Figure]:
    """Whole answers, sixteen clients."""
    runs = _runs(doors, options, AT_ONCE, partial(_job, options, clients=16))
    yield from beside("plain chat, CPU per request", "us", runs, lambda run: run.cpu_us)
    rate = "plain chat, 16 clients"
    yield from beside(rate, "requests/s", runs, lambda run: run.found.requests / run.found.seconds, lower=False)
    runs = _runs(doors, options, AT_ONCE, partial(_job, options, clients=CROWD))
    yield from beside(f"plain chat, {CROWD} clients, CPU per request", "us", runs, lambda run: run.cpu_us)
    rate = f"plain chat, {CROWD} clients"
    yield from beside(rate, "requests/s", runs, lambda run: run.found.requests / run.found.seconds, lower=False)
    runs = _runs(doors, options, PACED, partial(_job, options, clients=STREAMS))
    yield from beside("plain chat, tokens one by one, CPU per request", "us", runs, lambda run: run.cpu_us)


def _alone(opened: Opened, options: argparse.Namespace) -> Iterable[Figure]:
    """Latency added to a worker that answers at once, for a single client."""
    with opened(AT_ONCE) as target:
        tokenized = _run(target, _job(options, target.port, clients=1, tokenized=True))
        yield Figure("prompt of token ids, one client, p50", tokenized.found.p50_ms, "ms")
        yield Figure("chat, one client, p50", _run(target, _job(options, target.port, clients=1)).found.p50_ms, "ms")


def _streamed(doors: dict[str, Opened], options: argparse.Namespace) -> Iterable[Figure]:
    """Streams at the pace of an engine's steps, and beside the routers with all workers in step, too; with and without
    delayed acknowledgements on the client's side. Then what a further token costs."""
    routers = {name: opened for name, opened in doors.items() if name not in OTHER_PREFILL}
    for quick in (False, True):
        job = partial(_job, options, clients=STREAMS, stream=True, quick=quick)
        how = ", quick acknowledgements" if quick else ""
        runs = _runs(doors, options, PACED, job)
        yield from beside(f"streamed, CPU per token{how}", "us", runs, lambda run: run.token_us)
        like = {name: measured for name, measured in runs.items() if name not in OTHER_PREFILL}
        yield from beside(f"streamed, first token p50{how}", "ms", like, lambda run: run.found.first_p50_ms)
        in_step = _runs(routers, options, IN_STEP, job)
        yield from beside(f"streamed, workers in step, CPU per token{how}", "us", in_step, lambda run: run.token_us)
    yield from _flowing(routers, options)


def _flowing(doors: dict[str, Opened], options: argparse.Namespace) -> Iterable[Figure]:
    """Cost of a token in streams that neither begin nor end; not beside a peer with a pace of its own."""
    for pace, how in ((PACED, ""), (IN_STEP, ", workers in step")):
        runs = _repeated(doors, options, pace, _flow)
        yield from beside(f"streamed, CPU per further token{how}", "us", runs, lambda run: run.cpu_us)


def _flow(target: Target) -> Measured:
    """Each client has one stream; their tokens are counted by their pace, and the program ends if they did not keep
    it."""
    streams = list(bodies(stream=True, tokenized=False, tokens_out=FLOW_TOKENS))
    job = Job(port=target.port, bodies=streams, clients=STREAMS, seconds=FLOW_BEGIN_S)
    from_s, to_s = FLOW_S
    with ThreadPoolExecutor(1) as beside:
        load = beside.submit(_loaded, target.name, job)
        time.sleep(from_s)
        before_s, began_s = target.cpu_s(), time.monotonic()
        time.sleep(to_s - from_s)
        spent_s, took_s = target.cpu_s() - before_s, time.monotonic() - began_s
        found = load.result()
    if (found.errors, found.all_requests) != (0, STREAMS) or found.seconds > FLOW_TOKENS * PACED.ms / 1000 * FLOW_LATE:
        sys.exit(f"{target.name}: of {STREAMS} streams {found.all_requests} came whole, in {found.seconds:.1f} s")
    tokens = STREAMS * took_s * 1000 / PACED.ms
    return Measured(found, spent_s / tokens * MICRO)


def _runs(
    doors: dict[str, Opened], options: argparse.Namespace, pace: Pace, job: Callable[[int], Job]
) -> dict[str, list[Measured]]:
    return _repeated(doors, options, pace, lambda target: _run(target, job(target.port)))


def _repeated(
    doors: dict[str, Opened], options: argparse.Namespace, pace: Pace, run: Callable[[Target], Measured]
) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {name: [] for name in doors}
    for _ in range(REPEATS_QUICK if options.quick else REPEATS):
        for name, opened in doors.items():
            with opened(pace) as target:
                found[name].append(run(target))
    return found


def _run(target: Target, job: Job) -> Measured:
    before_s = target.cpu_s()
    found = _loaded(target.name, job)
    return _measured(target.name, found, target.cpu_s() - before_s)


def _loaded(name: str, job: Job) -> Found:
    load = subprocess.run(
        [sys.executable, "-m", "bench.frontdoor_load"], input=msgspec.json.encode(job).decode() + "\n",
        capture_output=True, text=True, check=False, timeout=job.seconds + 60,
    )  # fmt: skip
    if load.returncode:
        sys.exit(f"{name}: the load ended early:\n{load.stderr[-2000:]}")
    return msgspec.json.decode(load.stdout, type=Found)


def _measured(name: str, found: Found, spent_s: float) -> Measured:
    """The program ends if what was found is not to be trusted."""
    if found.errors:
        sys.exit(
            f"{name}: {found.errors} requests failed (another status than 200, a connection that broke off, or no end "
            f"of the answer in time); {found.all_requests} were answered"
        )
    if not found.requests:
        sys.exit(f"{name}: nothing was answered after the warm-up")
    return Measured(found, spent_s / found.all_requests * MICRO)


def _job(
    options: argparse.Namespace, port: int, *, clients: int, stream: bool = False, quick: bool = False,
    tokenized: bool = False,
) -> Job:  # fmt: skip
    return Job(
        port=port, bodies=list(bodies(stream=stream, tokenized=tokenized)), clients=clients,
        seconds=SECONDS_QUICK if options.quick else SECONDS, quick_ack=quick,
        path="/v1/completions" if tokenized else "/v1/chat/completions",
    )  # fmt: skip


def bodies(*, stream: bool, tokenized: bool, tokens_out: int = TOKENS_OUT) -> Iterator[str]:
    """Each with FIRST where the load puts a request's number."""
    made = random.Random(1)
    system = _words(made)
    for _ in range(BODIES):
        body: dict[str, Any] = {"model": MODEL, "max_tokens": tokens_out}
        if tokenized:
            rest = [made.randrange(300, 4000) for _ in range(PROMPT_TOKENS)]
            body["prompt"] = [*json.loads(f"[{FIRST}]"), *rest][:PROMPT_TOKENS]
        else:
            turn = f"{FIRST} {_words(made)}"
            body["messages"] = ({"role": "system", "content": system}, {"role": "user", "content": turn})
        if stream:
            body["stream"] = True
        yield json.dumps(body)


def _words(made: random.Random) -> str:
    return " ".join(made.choices(WORDS, k=TURN_WORDS))


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer-venvs", type=Path, nargs="+", action="extend", default=[], metavar="DIR",
        help=f"environments with any of {', '.join(PEERS)}; each is measured in the same run",
    )  # fmt: skip


if __name__ == "__main__":
    main("frontdoor", measure, _extend)
