"""`contrail up`: a whole deployment on this machine, from one command."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from api.auth.access_policy import exposure_warnings, isolation_note, with_checked_files
from api.cli.quantities import count_text
from api.cli.startup_progress import progress_on
from api.config.addresses import is_loopback
from api.config.data_folder import DataFolder, FolderLock
from api.config.loading import SETTINGS, Loaded, load, unknown_variables
from api.config.running_deployments import DEFAULT_DATA, registered, state_folder
from api.config.schema import ENGINES, Deployment, WorkerGroup
from api.deployment.launcher import Launcher, SignalEvents, frontend_drain_max_s
from api.deployment.preflight import (
    TINY,
    check_copies,
    check_key,
    check_metrics_file,
    check_workers,
    fit_log_to_disk,
    given_key,
)
from api.deployment.readiness import Progress
from api.server.sockets import close_all, open_listeners
from core.clock import SystemClock
from core.events.kv import PREFILL
from core.settings import POLICIES

BABBLES = """
  The tiny model is random weights: it babbles, always the same.
  A real one is a folder, or a name on the Hugging Face hub: --model Qwen/Qwen3-0.6B"""


@click.command()
@click.option(
    "-f", "--file", type=click.Path(path_type=Path), help="Deployment file; flags beat environment beat file."
)
@click.option("--model", "workers_model", help="tiny (built in), a folder, or a name on the Hugging Face hub.")
@click.option(
    "--served-name",
    "workers_served_name",
    metavar="NAME,…",
    help="What clients call the model; of several the first is its name, and one may end in *.  [default: the model]",
)
@click.option("--workers", "workers_count", type=click.IntRange(1), help="How many workers.  [default: 2]")
@click.option(
    "--prefill-workers",
    "prefill_count",
    type=click.IntRange(0),
    help="So many more that compute long prompts for those.  [default: 0]",
)
@click.option("--engine", "workers_engine", type=click.Choice(ENGINES), help="What runs the model.  [default: vllm]")
@click.option("--replicas", "frontend_replicas", type=click.IntRange(1), help="How many front ends, all on one port.")
@click.option(
    "--port", "frontend_port", type=click.IntRange(0, 65535), help="Of the API; 0 is a free one.  [default: 8000]"
)
@click.option(
    "--listen", "frontend_listen", metavar="HOST:PORT", help="The same with the host.  [default: 127.0.0.1:8000]"
)
@click.option("--keys", "frontend_keys", metavar="FILE", help="API keys (`contrail keys`); without, none is asked for.")
@click.option("--tls-cert", "frontend_tls_cert", metavar="FILE", help="Speak HTTPS with this certificate (PEM).")
@click.option("--tls-key", "frontend_tls_key", metavar="FILE", help="Its key, if that is in another file.")
@click.option(
    "--route-token",
    "frontend_route_token_file",
    metavar="FILE",
    help="Route for proxies that send the token in this file, at /v1/route.",
)
@click.option(
    "--policy", "routing_policy", type=click.Choice(POLICIES), help="How a worker is chosen.  [default: time]"
)
@click.option("--namespace", help="The deployment's name in the log.  [default: default]")
@click.option("--nats", "log_nats", metavar="URL,…", help="Use this NATS instead of a private one.")
@click.option("--etcd", "log_etcd", metavar="HOST:PORT", help="Use this etcd instead of a private one.")
@click.option("--nats-port", "log_nats_port", type=click.IntRange(0, 65535), help="Port of the private NATS.")
@click.option("--etcd-port", "log_etcd_port", type=click.IntRange(0, 65535), help="Port of the private etcd.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="CONTRAIL_DATA",
    default=DEFAULT_DATA,
    show_default=True,
    help="Where log, key and addresses are kept.",
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="CONTRAIL_KEY_FILE",
    help="The deployment's key, made elsewhere; a copy lies in the data folder then.  [default: one is made there]",
)
@click.option("--print-config", is_flag=True, help="Show the deployment and where each value came from; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --print-config: as JSON.")
def up(file: Path | None, data: Path, key_file: Path | None, print_config: bool, as_json: bool, **flags: Any) -> None:
    """Start a whole deployment here: NATS, etcd, workers and front ends; keep it running until Ctrl-C.

    \b
    contrail up
    contrail up --model Qwen/Qwen3-0.6B --workers 2 --port 9000
    contrail up -f deploy/agg-router.yaml --data /var/lib/contrail
    contrail up -f prod.yaml --key-file key         the key that parts on other machines have
    contrail up -f deploy/disagg-router.yaml        long prompts are computed by a worker of their own
    contrail up --workers 2 --prefill-workers 1     the same without a file
    contrail up --engine simulated --workers 4      no model is computed

    The environment says the same as the flags: CONTRAIL_MODEL, CONTRAIL_PORT, CONTRAIL_NATS and so on.
    """
    if as_json and not print_config:
        raise click.UsageError("--json goes with --print-config")
    for note in unknown_variables(os.environ):
        click.echo(f"Note: {note}", err=True)
    by_path = {setting.path: flags.get(setting.path.replace(".", "_")) for setting in SETTINGS}
    loaded = load(file, by_path)
    if print_config:
        click.echo(json.dumps(loaded.to_json(), indent=2) if as_json else loaded.to_yaml(), nl=as_json)
        return
    run_deployment(loaded, DataFolder(data.absolute()), key_file)


def run_deployment(loaded: Loaded, data: DataFolder, key_file: Path | None = None) -> None:
    """The deployment ran until it was told to stop, and nothing of it is left; ContrailError if it could not start."""
    frontend = loaded.deployment.frontend
    check_workers(loaded.deployment)
    check_copies(loaded.deployment)
    check_metrics_file(loaded.deployment)
    loaded = replace(loaded, deployment=with_checked_files(loaded.deployment, SystemClock()))
    with ExitStack() as at_end:
        listeners = open_listeners(frontend.host, frontend.port, frontend.replicas)
        at_end.callback(close_all, listeners)
        deployment = fit_log_to_disk(loaded, data.path)
        if key_file is not None:
            given_key(key_file, data)
        opened = data.make()
        if key_file is None:
            check_key(deployment, data)
        with FolderLock(data.lock):
            progress = progress_on(sys.stdout)
            notes = exposure_warnings(loaded.deployment.frontend, frontend.host)
            unregistered = at_end.enter_context(registered(state_folder(os.environ), data.path))
            further = (isolation_note(loaded.deployment.frontend), opened, unregistered)
            for note in (*notes, *filter(None, further)):
                progress.write_line(f"Note: {note}.")
            launch = Launcher(deployment, data, listeners, progress, key_file)
            asyncio.run(_run(launch, deployment, data, progress))


async def _run(launch: Launcher, deployment: Deployment, data: DataFolder, progress: Progress) -> None:
    interrupts = SignalEvents()
    interrupts.install()
    began_s = time.monotonic()
    progress.write_line(f"Starting {describe(deployment)}, data in {data.path}.")
    farewell = "Stopping what was started."
    try:
        if await _started(launch, interrupts):
            progress.write_line(welcome(launch, deployment, data, time.monotonic() - began_s))
            most_s = frontend_drain_max_s(deployment)
            farewell = f"Letting requests in flight finish ({most_s:g} s at most); Ctrl-C again to hurry."
            await _until_drain(launch, interrupts)
    finally:
        progress.done()
        progress.write_line(farewell)
        await launch.drain(interrupts.hurry)
        progress.write_line("Stopped.")


async def _until_drain(launch: Launcher, interrupts: SignalEvents) -> None:
    """Restarts what it is told to until it is told to drain; a restart that is under way then is given up."""
    restarting = asyncio.create_task(launch.restart_on_request(interrupts.restart))
    await interrupts.drain.wait()
    restarting.cancel()
    await asyncio.wait((restarting,))


async def _started(launch: Launcher, interrupts: SignalEvents) -> bool:
    """True when all is ready; False if we were interrupted before that."""
    starting = asyncio.create_task(launch.start())
    interrupted = asyncio.create_task(interrupts.drain.wait())
    await asyncio.wait((starting, interrupted), return_when=asyncio.FIRST_COMPLETED)
    interrupted.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    await asyncio.wait((starting,))
    return False


def describe(deployment: Deployment) -> str:
    """The deployment in a few words."""
    groups = ", ".join(map(_describe_group, deployment.workers))
    frontends = count_text(deployment.frontend.replicas, "front end")
    return f"{groups}, {frontends}, policy {deployment.routing_settings.policy}"


def _describe_group(group: WorkerGroup) -> str:
    """`2 workers (model tiny, simulated engine)`."""
    engine = "vLLM" if group.engine == "vllm" else f"{group.engine} engine"
    noun = "prefill worker" if group.role == PREFILL else "decode worker" if group.remote_prefill else "worker"
    return f"{count_text(group.count, noun)} (model {group.client_name}, {engine})"


def page_text(deployment: Deployment, api: str, command: str) -> str:
    """The address of the page, or the command that prints it with the token that it asks for."""
    frontend = deployment.frontend
    opens = frontend.keys is None and is_loopback(frontend.host)
    return f"{api}/debug" if opens else f"`{command}` prints its address"


def welcome(launch: Launcher, deployment: Deployment, data: DataFolder, took_s: float) -> str:
    """The address, the page and the commands that explain, a first request, and the places of log and files."""
    model = launch.models[0]
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})
    key = " -H 'Authorization: Bearer KEY'" if deployment.frontend.keys else ""
    debug = f"{command_name()} debug --data {data.path}"
    babbles = BABBLES if any(group.model == TINY and group.engine == "vllm" for group in deployment.workers) else ""
    return f"""
Ready after {took_s:.1f} s: {launch.api}/v1 serves {", ".join(launch.models)}.{babbles}

  The page, with every decision as it happens: {page_text(deployment, launch.api, debug)}
  {debug} opens it.
  {command_name()} explain --last --data {data.path} says why the last request went where it went.

  curl {launch.api}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'

  {command_name()} doctor --data {data.path} checks every part.
  {data.path} holds the log, the key, all addresses (run.json), and the log of each process (logs/).
  {launch.api}/docs has all routes of the API.
  Ctrl-C ends everything.
"""


def command_name() -> str:
    """The command that runs this program here: its name if the shell finds it, else its path."""
    ours = Path(sys.executable).with_name("contrail")
    return "contrail" if shutil.which("contrail") == str(ours) or not ours.exists() else shown_path(ours)


def shown_path(path: Path) -> str:
    """The path as short as it can be written from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
