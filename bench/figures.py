"""Figures: what a measurement found, shown as a table and written as JSON; and the command line that all share.

`python -m bench.NAME --json FILE --quick`: NAME's module ends in `main("NAME", measure)`. One that is in PEERS has
`--peer-venv DIR`, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, NoReturn, TypeVar

MICRO = 1e6
OURS = "contrail"
"""The name of our runs among those of peers."""
Run = TypeVar("Run")
"""One measured run."""
TERMINATED = 128 + signal.SIGTERM
"""Exit status, as shells have it."""
REFUSED = 2
"""Exit status if nothing can be measured as it was asked for, as argparse has it."""
DYNAMO_REPLAY, DYNAMO_MOCKER = "dynamo.replay", "dynamo.mocker"
PEERS: Mapping[str, str] = {"frontdoor": "", "index": "dynamo.llm", "routing": DYNAMO_REPLAY, "arena": DYNAMO_REPLAY}
"""Measurements with `--peer-venv`, and what that environment must be able to import; nothing where any of several peers
will do."""
RUNTIME = "pip install ai-dynamo-runtime==1.6.1"
INSTALL: Mapping[str, str] = {
    "dynamo.llm": f"`{RUNTIME}`",
    **dict.fromkeys(
        (DYNAMO_REPLAY, DYNAMO_MOCKER),
        f"`{RUNTIME}` and `pip install --no-deps ai-dynamo==1.6.1`, with what that needs",
    ),
}
"""Packages that each module needs."""
IMPORT_S = 120.0


class Figure(NamedTuple):
    """One measured number, with a peer's on the same work in the same run where there is one."""

    what: str
    value: float
    unit: str
    peer: float | None = None
    lower_is_better: bool = True
    note: str = ""
    holds: bool = True
    """False: it is not what it must be; the program ends with 1 once all is measured."""

    @property
    def ratio(self) -> float | None:
        """Factor by which it is better than the peer."""
        if self.peer is None or not self.value or not self.peer:
            return None
        return self.peer / self.value if self.lower_is_better else self.value / self.peer


Measure = Callable[[argparse.Namespace], Iterable[Figure]]
"""From the options to the figures, each given as soon as it is there."""


def main(name: str, measure: Measure, extend: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    """Measures, prints each figure as it comes, and keeps those that are there in `--json`. Exit status 1 if one of
    them does not hold, 2 if nothing could be measured.

    `extend` adds options of its own; `options.quick` asks for a smaller run; `options.peer_venv`, of a measurement in
    PEERS, is a Path or None.
    """
    options = _options(name, extend)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # what was started ends with us, as with Ctrl-C
    found = []
    for figure in measure(options):
        found.append(figure)
        _keep(report(name, options, found, complete=False), options.json)
        print(shown(figure), flush=True)
    if not found:
        refuse(f"{name}: nothing was measured")
    _keep(report(name, options, found), options.json)
    if broken := [figure for figure in found if not figure.holds]:
        sys.exit(f"{name}: not as it must be:" + "".join(f"\n{shown(figure)}" for figure in broken))


def refuse(sentence: str) -> NoReturn:
    """The program ends, with what it cannot do and why."""
    print(sentence, file=sys.stderr, flush=True)
    sys.exit(REFUSED)


def _options(name: str, extend: Callable[[argparse.ArgumentParser], None] | None) -> argparse.Namespace:
    """The options of the command line; wrong ones are refused."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures there as well")
    if name in PEERS:
        parser.add_argument("--peer-venv", type=Path, metavar="DIR", help="an environment with the peer")
    parser.add_argument("--quick", action="store_true", help="smaller and rougher: only to see that it runs")
    if extend is not None:
        extend(parser)
    options = parser.parse_args()
    if options.json is not None:
        _check_writable(options.json)
    if (module := PEERS.get(name)) and options.peer_venv is not None:
        peer_python(options.peer_venv, module)
    return options


def _check_writable(file: Path) -> None:
    """A file that is there keeps what is in it."""
    there = file.exists()
    try:
        with file.open("a"):
            pass
    except OSError as error:
        refuse(f"--json {file} cannot be written: {error.strerror}")
    if not there:
        file.unlink()


def _keep(what: Mapping[str, Any], file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(what, indent=1, default=str) + "\n")


def beside(
    what: str, unit: str, runs: Mapping[str, Sequence[Run]], of: Callable[[Run], float], *, lower: bool = True
) -> Iterable[Figure]:
    """Our median of what `of` takes from each run, once for each peer; `runs` are by name, ours by OURS."""
    medians = {name: median(map(of, each)) for name, each in runs.items()}
    mine = medians.pop(OURS)
    if not medians:
        yield Figure(what, mine, unit, lower_is_better=lower)
    for peer, theirs in medians.items():
        yield Figure(what, mine, unit, theirs, lower_is_better=lower, note=f"peer: {peer}")


def shown(figure: Figure) -> str:
    """One line of the table."""
    line = f"{figure.what:<58} {number(figure.value):>10} {figure.unit:<12}"
    if figure.peer is not None:
        line += f" peer {number(figure.peer):>10}"
    if figure.ratio is not None:
        line += f"  x{figure.ratio:.1f}"
    return f"{line}  {figure.note}".rstrip()


def number(value: float) -> str:
    """Three digits that count, and thousands apart."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def report(name: str, options: argparse.Namespace, found: list[Figure], *, complete: bool = True) -> dict[str, Any]:
    """The content of the JSON file, with stable snake_case keys; not `complete` while figures are missing."""
    return {
        "name": name,
        "quick": options.quick,
        "options": vars(options),
        "complete": complete,
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count(), "platform": platform.platform()},
        "figures": [{**figure._asdict(), "ratio": figure.ratio} for figure in found],
    }


def median_s(work: Callable[[], object], repeat: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median seconds of one call; `time.process_time` as the clock counts this process's CPU alone."""
    return median(lap(work, clock) for _ in range(repeat))


def lap(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    started = clock()
    work()
    return clock() - started


def rss_bytes() -> int:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@cache
def peer_python(venv: Path, module: str = PEERS["index"]) -> str:
    """The interpreter of the peer's environment, which can import that module. The program ends with a clear line if
    there is none, or it cannot."""
    python = venv / "bin" / "python"
    install = f"make it with `python -m venv`, then {INSTALL.get(module, f'install {module}')}"
    if not python.exists():
        refuse(f"--peer-venv {venv}: there is no {python}; {install}")
    command = [str(python), "-c", f"import {module}"]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=IMPORT_S)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        refuse(f"--peer-venv {venv}: it cannot import {module} ({lines[-1]}); {install}")
    except (OSError, subprocess.TimeoutExpired) as error:
        refuse(f"--peer-venv {venv}: its python does not work ({error}); {install}")
    return str(python)
