"""multi-turn: routing of growing conversations on a real pair of vLLM workers.

`contrail up` with two workers of the built-in tiny model, or of a real one (`--model`). The policies take turns,
A B C B C A and so on, each with the same work in words of its own, so that no policy finds another's blocks in a
cache, and a disturbance of the machine disturbs all. Both engines, the front end and the client share this machine's
cores: saved prefills are exact, and times to the first token are those of a machine that does all of that.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from api.cli.inspect.live_settings import change_stored, wait_for_rollout
from api.config.deployment_ref import find_by_data_folder
from api.process.planes import open_registry
from bench.deployed import Deployed, deployed
from bench.figures import Figure, main, number
from bench.multi_turn_talks import Turn, Workload, talk_all
from bench.policies import policies
from bench.spent import Spent
from replay.simulate.report import LatencySummary, Spread, latency_summary, spread

ROUND_ROBIN = "round-robin"
POLICIES = (ROUND_ROBIN, "kv", "time")
WORKERS = 2
TINY, NAME = "tiny", "talks"
CONTEXT = 4096
START_S = 600.0
"""Two engines load one model at the same time."""
TALKS, TURNS, REPEATS = 6, 6, 2
TALKS_QUICK, TURNS_QUICK, REPEATS_QUICK = 2, 3, 1
WARM_UP = Workload(talks=2, turns=2, pause_s=0.0)
SIMULATED = {"eos_every": 0, "capacity_blocks": 4096}
US_PER_S = 1e6
BY_ENGINES = "prompt tokens computed, by engines"


class Phase(NamedTuple):
    """All turns under one policy, once."""

    turns: list[Turn]
    computed: dict[str, int]
    """Prompt tokens that each worker computed, by its own counters."""


class Found(NamedTuple):
    """All phases of one policy."""

    phases: list[Phase]

    @property
    def turns(self) -> list[Turn]:
        """Of all phases."""
        return [turn for phase in self.phases for turn in phase.turns]

    @property
    def first(self) -> LatencySummary:
        """To the first token."""
        return latency_summary([round((turn.answer.first_s - turn.answer.sent_s) * US_PER_S) for turn in self.turns])

    @property
    def prompt_tokens(self) -> int:
        """Of all turns."""
        return sum(turn.answer.prompt_tokens for turn in self.turns)

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not cached, as answers say."""
        return sum(turn.answer.prompt_tokens - turn.answer.cached_tokens for turn in self.turns)

    @property
    def computed_by_engines(self) -> int:
        """The same, as the workers count."""
        return sum(sum(phase.computed.values()) for phase in self.phases)

    @property
    def requests(self) -> Spread:
        """Over the workers."""
        counts = dict.fromkeys(self.phases[0].computed, 0)
        for turn in self.turns:
            counts[turn.answer.worker] += 1
        return spread(list(counts.values()))

    @property
    def computed(self) -> Spread:
        """Over the workers, as they count."""
        return spread([sum(phase.computed[name] for phase in self.phases) for name in self.phases[0].computed])


def measure(options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of each policy, beside round-robin where that was tried; then the table."""
    talks, turns = (TALKS_QUICK, TURNS_QUICK) if options.quick else (TALKS, TURNS)
    load = Workload(talks=options.talks or talks, turns=options.turns or turns)
    if load.tokens_max > options.context:
        sys.exit(f"--turns {load.turns} makes prompts of up to {load.tokens_max} tokens: more than --context allows")
    named = policies(options.policies)
    repeats = options.repeats or (REPEATS_QUICK if options.quick else REPEATS)
    args = {"max_model_len": options.context} if options.engine == "vllm" else SIMULATED
    group = {"name": "decode", "model": options.model, "served_name": NAME, "count": WORKERS}
    with deployed({"workers": [{**group, "engine": options.engine, "engine_args": args}]}, START_S) as deployment:
        found, busy = asyncio.run(_measured(deployment, load, named, repeats))
    beside = found.get(ROUND_ROBIN)
    for policy, it in found.items():
        yield from figures(policy, it, None if policy == ROUND_ROBIN else beside)
    yield Figure("CPU, whole machine", 100 * busy, "% busy")
    print("\n" + markdown(found) + "\n", flush=True)


def extend(parser: argparse.ArgumentParser) -> None:
    """Options: the model, and the lengths of prompts and answers."""
    parser.add_argument("--model", default=TINY, help="a folder, or a name on the Hugging Face hub; else the built-in")
    parser.add_argument("--engine", choices=("vllm", "simulated"), default="vllm", help="simulated: to try the bench")
    parser.add_argument("--context", type=int, default=CONTEXT, metavar="TOKENS", help="of the engines")
    parser.add_argument("--talks", type=int, help=f"at once; {TALKS} if not given")
    parser.add_argument("--turns", type=int, help=f"of each; {TURNS} if not given")
    parser.add_argument("--repeats", type=int, help=f"of each policy; {REPEATS} if not given")
    parser.add_argument("--policies", nargs="+", default=POLICIES, metavar="NAME[,KEY=VALUE…]", help="what to try")


async def _measured(
    deployment: Deployed, load: Workload, named: Mapping[str, Mapping[str, Any]], repeats: int
) -> tuple[dict[str, Found], float]:
    """By policy; and how busy the machine was."""
    phases: dict[str, list[Phase]] = defaultdict(list)
    await talk_all(deployment.port, NAME, WARM_UP, shape=0, content=0)
    before, content = Spent.by_now(deployment), 1
    order = list(named)
    for repeat in range(repeats):
        for policy in order:
            print(f"{policy}, {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
            await _decide_by(deployment, named[policy])
            phases[policy].append(await _phase(deployment, load, shape=repeat, content=content))
            content += 1
        order.append(order.pop(0))
    busy = Spent.by_now(deployment).busy_since(before)
    return {policy: Found(phases[policy]) for policy in named}, busy


async def _phase(deployment: Deployed, load: Workload, shape: int, content: int) -> Phase:
    before = await asyncio.to_thread(_computed, deployment)
    turns = await talk_all(deployment.port, NAME, load, shape, content)
    after = await asyncio.to_thread(_computed, deployment)
    return Phase(turns, {name: after[name] - before[name] for name in before})


async def _decide_by(deployment: Deployed, given: Mapping[str, Any]) -> None:
    """The front end decides by these settings from here on, and the others are as configured."""
    connection = find_by_data_folder(deployment.data)
    async with open_registry(connection) as registry:
        stored = await change_stored(registry, connection.deployment.routing_settings, given, None)
        assert (await wait_for_rollout(registry, stored.revision, connection.operations_token)).everywhere


def _computed(deployment: Deployed) -> dict[str, int]:
    """Prompt tokens that each worker has computed since its start, by its name."""
    return {worker["name"]: _count(worker["ops"]) for worker in deployment.parts("worker")}


def _count(ops: str) -> int:
    with urllib.request.urlopen(f"http://{ops}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    counted = {sample.name: sample.value for family in families for sample in family.samples}
    return int(counted["contrail_worker_prompt_tokens_total"] - counted["contrail_worker_cached_tokens_total"])


def figures(policy: str, it: Found, beside: Found | None) -> Iterator[Figure]:
    """Of one policy. What the workers count does not hold if answers tell otherwise."""
    note = "" if beside is None else f"peer: {ROUND_ROBIN}"
    for what, unit, value in _numbers(it):
        peer = None if beside is None else {name: found for name, _, found in _numbers(beside)}[what]
        differs = what == BY_ENGINES and it.computed_by_engines != it.computed_tokens
        text = f"DIFFERS: {it.computed_by_engines} counted, {it.computed_tokens} by answers" if differs else note
        yield Figure(f"{policy}: {what}", value, unit, peer, note=text, holds=not differs)


def _numbers(it: Found) -> list[tuple[str, str, float]]:
    return [
        ("first token, mean", "ms", it.first.mean),
        ("first token, p50", "ms", it.first.p50),
        ("first token, p99", "ms", it.first.p99),
        ("prompt tokens", "", it.prompt_tokens),
        ("prompt tokens computed, by answers", "", it.computed_tokens),
        (BY_ENGINES, "", it.computed_by_engines),
        ("requests, most over mean", "", it.requests.max_over_mean),
        ("computed tokens, most over mean", "", it.computed.max_over_mean),
    ]


def markdown(found: Mapping[str, Found]) -> str:
    """A row for each number, a column for each policy."""
    lines = [f"| | {' | '.join(found)} |", "|---|" + "--:|" * len(found)]
    columns: list[list[tuple[str, str, float]]] = [_numbers(it) for it in found.values()]
    for row in zip(*columns, strict=True):
        what, unit, _ = row[0]
        lines.append(f"| {what}{f', {unit}' if unit else ''} | {' | '.join(_shown(value) for *_, value in row)} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:.2f}" if value < 10 else number(value)


if __name__ == "__main__":
    main("multi_turn", measure, extend)
