"""`contrail prefill-worker`: one worker that computes prompts for decode workers, and answers no request itself."""

from __future__ import annotations

from typing import Any

import click

from api.cli_worker import run_worker, worker_options
from api.config.deployment_options import deployment_options
from api.config.deployment_ref import DeploymentRef
from api.config.schema import PREFILL_SLOTS, SLOTS_MAX
from api.process_options import name_option
from core.events.kv import PREFILL


@click.command(context_settings={"ignore_unknown_options": True})
@deployment_options
@name_option("prefill-0")
@click.option(
    "--slots",
    default=PREFILL_SLOTS,
    show_default=True,
    type=click.IntRange(1, SLOTS_MAX),
    help="Prompts that it computes at once.",
)
@worker_options
def prefill_worker(connection: DeploymentRef, slots: int, **rest: Any) -> None:
    """Start one worker that computes prompts for others. What follows `--` goes to the engine as it stands.

    It takes jobs from the deployment's queue, computes the prompt, and keeps the blocks until the decode worker that
    asked has fetched them. Any number may come and go at any time: without one, decode workers compute their prompts
    themselves. Decode workers ask only if they were started for it: `contrail up` with a prefill group, or
    `contrail worker --remote-prefill`. Model, engine and block size must be those of the decode workers.

    \b
    contrail prefill-worker --data data --name prefill-1 --model tiny --model-path data/models/tiny
    contrail prefill-worker --data data --name prefill-2 --model tiny --engine simulated --slots 4

    On another machine, with a copy of the deployment's key; --listen must be an address of this machine that the
    others reach, and the blocks are fetched from there, too (VLLM_NIXL_SIDE_CHANNEL_HOST says another):

    \b
    contrail prefill-worker --nats nats://10.0.0.1:4222 --etcd 10.0.0.1:2379 --namespace prod --key-file key \\
        --name gpu-8 --model Qwen/Qwen3-0.6B --listen 10.0.0.8:9100 -- --max-num-batched-tokens 8192
    """
    run_worker(connection, PREFILL, moves_blocks=PREFILL, slots=slots, **rest)
