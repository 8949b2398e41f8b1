"""Front ends to be measured by `bench.agents`: a deployment of ours, and Dynamo's front end over its mock workers.

Workers are of equal speed, block size and capacity: ours are simulated by the formulas of Dynamo's mocker
(`MockerTiming`), as many times as fast. Both have the built-in tiny model's tokenizer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from actors.engines.simulated.simulated_settings import mocker_settings
from api.config.deployment_ref import DeploymentRef, find_by_data_folder
from api.process.planes import open_log
from bench.agents_parts import BLOCK_SIZE
from bench.deployed import deployed
from bench.figures import OURS
from bench.frontdoor_targets import Mocker, Target, dynamo_over
from bench.slice_part import engine_args
from core.codec import decode_message
from core.events import RequestFinished
from core.events.request_stages import RequestStages
from core.ids import StreamSeq
from core.subjects import ROUTING, is_kv
from streams.jetstream.broker_accounts import READER
from streams.jetstream.broker_inspection import BrokerInspection

MODEL = "sim"
CAPACITY_BLOCKS = 160_000
CONTEXT_MAX = 262_144
SPEED = 12.0
"""Times as fast as Dynamo's mocker at 1: a decode step from 0.48 ms on, 8 192 prompt tokens in 14 ms."""
ENGINE = dataclasses.replace(
    mocker_settings(BLOCK_SIZE, CAPACITY_BLOCKS), context_max=CONTEXT_MAX, time_scale=SPEED, token_min=300, vocab=900
)
"""Of our workers. Their tokens are plain words: text that may be half a character is held back."""
START_S, START_WORKER_S = 120.0, 6.0
"""Longest start, and of it what each worker has: a process on few cores."""
RECORDS_S = 60.0
"""Longest wait for the log to have the ends of all requests."""
POLL_S = 1.0


class LogState(NamedTuple):
    """The log at a moment."""

    bytes: Mapping[str, int]
    """By kind of stream: `kv`, and `routing`."""
    routing_seq: StreamSeq
    """Of the last decision or end."""


class MeasuredSide(NamedTuple):
    """A front end that serves, with the log behind it where there is one."""

    target: Target
    deployment: DeploymentRef | None = None

    def log_state(self) -> LogState | None:
        """As of now; None without a log."""
        return None if self.deployment is None else asyncio.run(_log_state(self.deployment))

    def stages_since(self, before: LogState, requests: int) -> list[RequestStages]:
        """The recorded stages of all attempts since then, once so many requests have ended in the log. The program ends
        if the log has fewer after RECORDS_S."""
        assert self.deployment is not None
        until_s = time.monotonic() + RECORDS_S
        while len(found := asyncio.run(_ends(self.deployment, before.routing_seq))) < requests:
            if time.monotonic() > until_s:
                sys.exit(f"after {RECORDS_S:g} s the log has {len(found)} ends of {requests} requests")
            time.sleep(POLL_S)
        return [stages for end in found.values() for stages in end]


@contextmanager
def ours(frontends: int, workers: int) -> Iterator[MeasuredSide]:
    """`contrail up` with a real log and so many front ends and simulated workers."""
    group = {"name": "decode", "model": MODEL, "count": workers, "engine": "simulated"}
    group["engine_args"] = engine_args(ENGINE)
    config = {"log": {"max_bytes": "8GiB"}, "frontend": {"replicas": frontends}, "workers": [group]}
    with deployed(config, START_S + START_WORKER_S * workers) as there:
        pids, others = (
            tuple(part["pid"] for kind in kinds for part in there.parts(kind))
            for kinds in (("frontend",), ("worker", "nats", "etcd"))
        )
        yield MeasuredSide(Target(OURS, there.port, pids, others), find_by_data_folder(there.data))


@contextmanager
def dynamo(venv: Path, folder: Path, workers: int) -> Iterator[MeasuredSide]:
    """Dynamo's front end with its KV router, and so many of its mock workers."""
    with TemporaryDirectory() as home:
        model = long_context(folder, Path(home, "model"))
        mocker = Mocker(SPEED, workers, CAPACITY_BLOCKS)
        with dynamo_over(venv, str(model), MODEL, mocker, START_S) as target:
            yield MeasuredSide(target)


def long_context(folder: Path, copy: Path) -> Path:
    """A copy of a model's folder that names CONTEXT_MAX as its context: Dynamo reads it there."""
    shutil.copytree(folder, copy)
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        file = copy / name
        file.write_text(json.dumps({**json.loads(file.read_text()), key: CONTEXT_MAX}))
    return copy


async def _log_state(deployment: DeploymentRef) -> LogState:
    found = {ROUTING: 0, "kv": 0}
    credentials = deployment.nats_credentials(READER)
    async with BrokerInspection(deployment.nats, credentials, deployment.namespace) as broker:
        for stream in await broker.streams():
            kind = "kv" if is_kv(stream.name) else str(stream.name)
            if kind in found:
                found[kind] += stream.bytes
    async with open_log(deployment) as log:
        return LogState(found, (await log.state(ROUTING)).last_seq)


async def _ends(deployment: DeploymentRef, after: StreamSeq) -> dict[str, list[RequestStages]]:
    """The recorded stages of each request that ended behind `after`, an attempt after the other."""
    found: dict[str, list[RequestStages]] = {}
    async with open_log(deployment) as log:
        async for record in log.read(ROUTING, StreamSeq(after + 1)):
            for event in decode_message(record.payload).events:
                if isinstance(event, RequestFinished) and (stages := RequestStages.of(event.stages)) is not None:
                    found.setdefault(event.request, []).append(stages)
    return found
