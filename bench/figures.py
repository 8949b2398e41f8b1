"""Figures: what a measurement found, shown as a table and written as JSON; and the command line that all share.

`python -m bench.NAME --json FILE --peer-venv DIR --quick`: NAME's module ends in `main("NAME", measure)`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

MICRO = 1e6
TERMINATED = 128 + signal.SIGTERM
"""Exit status, as shells have it."""


class Figure(NamedTuple):
    """One measured number, with a peer's on the same work in the same run where there is one."""

    what: str
    value: float
    unit: str
    peer: float | None = None
    lower_is_better: bool = True
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer."""
        if self.peer is None or not self.value or not self.peer:
            return None
        return self.peer / self.value if self.lower_is_better else self.value / self.peer


Measure = Callable[[argparse.Namespace], Iterable[Figure]]
"""From the options to the figures, each given as soon as it is there."""


def main(name: str, measure: Measure, extend: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    """Measures, prints each figure as it comes, and writes all of them to `--json` at the end.

    `extend` adds options of its own; `options.peer_venv` is a Path or None, `options.quick` asks for a smaller run.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--peer-venv", type=Path, metavar="DIR", help="an environment with ai-dynamo-runtime")
    parser.add_argument("--quick", action="store_true", help="smaller and rougher: only to see that it runs")
    if extend is not None:
        extend(parser)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # what was started ends with us, as with Ctrl-C
    found = []
    for figure in measure(options):
        found.append(figure)
        print(shown(figure), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(report(name, options, found), indent=1) + "\n")


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


def report(name: str, options: argparse.Namespace, found: list[Figure]) -> dict[str, Any]:
    """What stands in the JSON file: stable snake_case keys."""
    return {
        "name": name,
        "quick": options.quick,
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


def peer_python(venv: Path) -> str:
    """The interpreter of the peer's environment; the program ends with a clear line if there is none."""
    python = venv / "bin" / "python"
    if not python.exists():
        sys.exit(f"--peer-venv {venv}: there is no {python}; make it with `python -m venv`, then pip install the peer")
    return str(python)
