"""A deployment as `contrail up` starts it, for measurements that want its processes and what they cost."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

from bench.processes import cpu_s, family, running
from streams.embedded.loopback_ports import free_port

START_S = 120.0
"""Longest start of a deployment of simulated workers."""
STOP_S = 60.0
POLL_S = 0.25
ANSWER_S = 5.0
TAIL_CHARS = 2000


class Deployed(NamedTuple):
    """One that runs, and all of its workers can be used."""

    data: Path
    port: int

    def parts(self, kind: str) -> list[dict[str, Any]]:
        """The entries in run.json of processes of this kind: `frontend`, `worker`, `nats`, `etcd`."""
        return [part for part in self._parts() if part["kind"] == kind]

    def cpu_s(self) -> dict[str, float]:
        """Processor time until now, by kind of part, children included."""
        spent_s: dict[str, float] = {}
        for part in self._parts():
            kind, part_s = part["kind"], sum(map(cpu_s, family(part["pid"])))
            spent_s[kind] = spent_s.get(kind, 0.0) + part_s
        return spent_s

    def _parts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.data / "run.json").read_bytes())["parts"]
        return found


@contextmanager
def deployed(config: Mapping[str, Any], start_s: float = START_S) -> Iterator[Deployed]:
    """A deployment by this file's content, on loopback, gone with all its data at the end. The program ends with what
    it wrote if it is not ready in time."""
    with tempfile.TemporaryDirectory() as folder:
        file, log, port = Path(folder, "deployment.yaml"), Path(folder, "up.log"), free_port()
        file.write_text(json.dumps({"version": 1, **config}))
        made = Deployed(Path(folder, "data"), port)
        words = ["up", "-f", str(file), "--data", str(made.data), "--port", str(port)]
        with running([sys.executable, "-P", "-m", "api.cli", *words], log, end_s=STOP_S) as process:
            _until_ready(process, log, port, sum(group["count"] for group in config["workers"]), start_s)
            yield made


def _until_ready(process: Popen[str], log: Path, port: int, workers: int, start_s: float) -> None:
    until_s = time.monotonic() + start_s
    while _usable(port) < workers:
        if process.poll() is not None or time.monotonic() > until_s:
            sys.exit(f"contrail up is not ready after {start_s:g} s, or ended:\n{log.read_text()[-TAIL_CHARS:]}")
        time.sleep(POLL_S)


def _usable(port: int) -> int:
    """Workers that the front end can send requests to."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=ANSWER_S) as answer:
            return sum(card["workers"] for card in json.load(answer)["data"])
    except OSError:
        return 0
