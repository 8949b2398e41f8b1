"""instructions: what a request costs a front end, counted instead of timed.

`python -m bench.instructions --json FILE --beside DIR`. Times on a busy machine differ by a tenth from run to run, and
by as much from process to process; callgrind counts the instructions of a process, those of C included, and finds the
same again within half a percent. It says nothing of caches and of the kernel.

A second front end joins a deployment of `bench.frontdoor` and runs under valgrind, some fifty times slower. So what it
does by the clock counts fifty times as much as it should: the same while it idles is measured and taken off, and an
answer counts as taken late by its client only after fifty times as long as otherwise. `--beside` measures another
checkout of this project in the same way, with its own code and this environment's packages.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from actors.engines.tiny_model import ensure_tiny_checkpoint
from bench.figures import Figure, lap, main, refuse
from bench.frontdoor import bodies
from bench.frontdoor_load import Found, Job
from bench.frontdoor_targets import answers, ours
from bench.frontdoor_worker import Pace
from bench.processes import running
from streams.embedded.loopback_ports import free_port

HERE = Path(__file__).resolve().parent.parent
REQUESTS, REQUESTS_QUICK = 1600, 200
WARM_REQUESTS = 600
"""Before the counting begins: caches fill, and the interpreter specializes its code."""
COUNTED_FIRST = 200
"""Then the first of those that are counted, which are left out."""
IDLE_S = 25.0
SETTLE_S = 5.0
"""After the front end's first answer."""
LOAD_S_MAX = 500.0
START_S = 240.0
"""Longest start under valgrind."""
THOUSAND = 1000
SLOWER = 50
"""The factor by which valgrind slows a process."""
PATIENT = f"""
from core.events import routing

if hasattr(routing, "DELAYED_MS"):
    routing.DELAYED_MS *= {SLOWER}
"""
"""Goes before all else in the process that is counted."""
FILES = "callgrind.out"
TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


class Load(NamedTuple):
    """A load of `bench.frontdoor`."""

    clients: int
    stream: bool = False
    tokenized: bool = False
    pace: Pace = Pace(0.0)


LOADS = {
    "chat, 16 clients": Load(16),
    "chat, 128 clients": Load(128),
    "chat, one client": Load(1),
    "chat streamed, 16 clients": Load(16, stream=True),
    "prompt of token ids, one client": Load(1, tokenized=True),
    "chat, tokens one by one": Load(160, pace=Pace(500.0)),
}
"""The pace is fifty times slower, too; so many clients that idling is little of what is counted."""


def measure(options: argparse.Namespace) -> Iterable[Figure]:
    """Each load on a deployment of its own, of this tree and of the other one."""
    if shutil.which("valgrind") is None:
        refuse("bench.instructions needs valgrind: install your distribution's package")
    requests = REQUESTS_QUICK if options.quick else REQUESTS
    for name, load in LOADS.items():
        if options.loads and not any(part in name for part in options.loads):
            continue
        mine = _counted(HERE, load, requests)
        peer = None if options.beside is None else _counted(options.beside.resolve(), load, requests)
        note = "" if peer is None else f"{(mine / peer - 1) * 100:+.1f} % beside {options.beside}"
        yield Figure(f"{name}, instructions per request", mine / THOUSAND, "thousand", note=note)


def _counted(tree: Path, load: Load, requests: int) -> float:
    """Instructions of one request at a front end of this tree."""
    with tempfile.TemporaryDirectory() as folder, _code_of(tree):
        ensure_tiny_checkpoint(Path(folder, "tiny"), lambda *_: None)
        with ours(str(Path(folder, "tiny")), load.pace) as target:
            return _of_another(target.pids[0], Path(folder), load, requests)


def _of_another(pid: int, folder: Path, load: Load, requests: int) -> float:
    """The same, by a front end like that of the process, which joins its deployment."""
    port, log = free_port(), folder / "frontend.log"
    (folder / "sitecustomize.py").write_text(PATIENT)
    command = [
        "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / FILES}",
        *_like(pid, port),
    ]  # fmt: skip
    environment = _environment(pid)
    environment["PYTHONPATH"] = os.pathsep.join((str(folder), environment["PYTHONPATH"]))
    with running(command, log, environment) as process:
        answers(port, log, wait_s=START_S)
        time.sleep(SETTLE_S)
        _loaded(port, load, WARM_REQUESTS, first=0)
        _control(process.pid, "-i", "on")
        _loaded(port, load, COUNTED_FIRST, first=WARM_REQUESTS)
        _control(process.pid, "-d")
        took_s = lap(lambda: _loaded(port, load, requests, first=WARM_REQUESTS + COUNTED_FIRST))
        _control(process.pid, "-d")
        idle_s = lap(lambda: time.sleep(IDLE_S))
        _control(process.pid, "-d")
        _control(process.pid, "-i", "off")
    busy, idle = (_total(folder / f"{FILES}.{number}") for number in (2, 3))
    return (busy - idle * took_s / idle_s) / requests


def _like(pid: int, port: int) -> Iterator[str]:
    """The command of a front end like this one, alone and on a port of its own."""
    words = iter(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1])
    for word in words:
        if word in {"--fd", "--name", "--listen"}:
            next(words)
        elif word != "--supervised":
            yield word
    yield from ("--name", "counted", "--listen", f"127.0.0.1:{port}")


def _environment(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def _code_of(tree: Path) -> Iterator[None]:
    """What is started meanwhile runs the code of this tree."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tree)
    try:
        with chdir(tree):
            yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _loaded(port: int, load: Load, requests: int, *, first: int) -> None:
    """So many requests were answered; the program ends if one was not."""
    job = Job(
        port=port, bodies=list(bodies(stream=load.stream, tokenized=load.tokenized)), clients=load.clients,
        seconds=LOAD_S_MAX, requests=requests, first=first,
        path="/v1/completions" if load.tokenized else "/v1/chat/completions",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bench.frontdoor_load"], input=msgspec.json.encode(job).decode() + "\n",
        capture_output=True, text=True, check=True, timeout=LOAD_S_MAX + 60, cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    found = msgspec.json.decode(done.stdout, type=Found)
    if found.errors or found.all_requests != requests:
        sys.exit(f"{found.errors} of {requests} requests failed, {found.all_requests} were answered")


def _control(pid: int, *words: str) -> None:
    subprocess.run(["callgrind_control", *words, str(pid)], check=True, capture_output=True)


def _total(dump: Path) -> int:
    found = TOTAL.search(dump.read_text())
    assert found is not None
    return int(found[1])


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, measured in the same way")
    parser.add_argument(
        "--loads", nargs="+", default=[], metavar="PART", help="only loads whose names have one of these"
    )


if __name__ == "__main__":
    main("instructions", measure, _extend)
