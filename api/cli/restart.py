"""`contrail restart`: front ends, workers or single parts of a running deployment, one after the other."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import click

from api.cli.output import EXIT_NO, json_text, print_text
from api.cli.renderer import OK, PROBLEM, Mark
from api.config.data_folder import DataFolder, is_locked
from api.config.run_file import DONE, FAILED, READY, RUNNING, WAITING, Restart, RestartStep, RunFile, read_run
from api.config.running_deployments import data_folder_of
from api.deployment.managed_process import started_ticks
from api.deployment.rolling_restart import FRONTENDS, RESTARTS, WORKERS, RestartRequest, ask_restart
from core.errors import CallerError, Unavailable

POLL_S = 0.2
BEGIN_MAX_S = 20.0
"""Longest wait until a `contrail up` without another restart begins this one."""
STATUS = {DONE: OK, FAILED: PROBLEM}
FRONTEND_KIND, WORKER_KIND = "frontend", "worker"


@click.command()
@click.argument("parts", nargs=-1, metavar="[frontends|workers|NAME]…")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder of the deployment, as given to `contrail up`.  [default: data, else that of the only one]",
)
@click.option("--json", "as_json", is_flag=True, help="How it went, as JSON.")
def restart(parts: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Restart parts of a running deployment one after the other: all front ends, unless told which.

    A front end is replaced: the new one is ready before the old one takes no more requests, and that one finishes what
    it has. So no request fails, except those that do not end within `frontend.drain_timeout` (30 s). A worker ends
    before its successor starts; its requests go on elsewhere, so a model with one worker has none for that time.

    \b
    contrail restart                       all front ends; so does SIGHUP, sent to a `contrail up` without a terminal
    contrail restart frontend-1 --data /var/lib/contrail
    contrail restart workers --json

    Exit status 1 if a part did not come up again; what came after it was left as it was.
    """
    data = data_folder_of(data)
    folder = DataFolder(data.absolute())
    run = running_deployment(folder, data)
    asked = parts or (FRONTENDS,)
    _check(asked, run)
    request = RestartRequest(id=secrets.token_hex(8), parts=asked)
    ask_restart(folder.restart, request)
    try:
        os.kill(run.pid, RESTARTS)
    except (ProcessLookupError, PermissionError) as error:
        folder.restart.unlink(missing_ok=True)
        raise CallerError(f"cannot reach `contrail up` (pid {run.pid}): {error.strerror}") from error
    ended = _followed(folder, data, request, quiet=as_json)
    if as_json:
        click.echo(json_text(ended))
    if ended.state == FAILED:
        raise SystemExit(EXIT_NO)


def running_deployment(folder: DataFolder, data: Path) -> RunFile:
    """The run file of the deployment that is ready there; CallerError if there is none."""
    run = read_run(folder.run)
    if run is None or run.state != READY:
        state = f" (it is {run.state})" if run else ""
        raise CallerError(f"no deployment runs with the data folder {data}{state}: name another folder with --data")
    # another process may have its number by now, and another `contrail up` the lock
    if not is_locked(folder.lock) or (run.started_ticks and started_ticks(run.pid) != run.started_ticks):
        raise CallerError(f"no deployment runs with the data folder {data}: its `contrail up` was killed")
    return run


def _check(asked: tuple[str, ...], run: RunFile) -> None:
    names = [part.name for part in run.parts if part.kind in (FRONTEND_KIND, WORKER_KIND)]
    for word in asked:
        if word not in (FRONTENDS, WORKERS, *names):
            raise CallerError(f"there is no part {word!r} to restart: say frontends, workers, or {', '.join(names)}")


def _followed(folder: DataFolder, data: Path, request: RestartRequest, *, quiet: bool) -> Restart:
    """The restart when it has ended; each change is printed. Unavailable if it does not begin."""
    states: dict[str, str] = {}
    begin_until_s = time.monotonic() + BEGIN_MAX_S
    while True:
        run = running_deployment(folder, data)
        restart = run.restart
        if restart is not None and restart.id == request.id:
            if not quiet:
                _print_changes(restart, states)
            if restart.state != RUNNING:
                return restart
        elif restart is not None and restart.state == RUNNING:
            begin_until_s = time.monotonic() + BEGIN_MAX_S  # another restart runs
        elif time.monotonic() > begin_until_s:
            folder.restart.unlink(missing_ok=True)
            raise Unavailable(f"`contrail up` (pid {run.pid}) did not begin within {BEGIN_MAX_S:g} s: see what it says")
        time.sleep(POLL_S)


def _print_changes(restart: Restart, states: dict[str, str]) -> None:
    for step in restart.parts:
        if step.state not in (states.get(step.name), WAITING):
            states[step.name] = step.state
            print_text([Mark(f"  {step.name}  {_step_text(step)}", STATUS.get(step.state, ""))])


def _step_text(step: RestartStep) -> str:
    if step.state == DONE:
        return f"restarted in {step.took_s:.1f} s"
    return f"failed: {step.why}" if step.state == FAILED else step.state
