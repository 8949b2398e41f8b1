"""The prefix index: stores, removals, lookups, memory, sweeps and dumps; beside Dynamo's RadixTree with `--peer-venv`.

Each case runs in a process of its own. While the peer is measured another process keeps the second core awake: its
binding hands every call to a thread of its own, which on an idle virtual machine costs it 40 us more each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figure, main, peer_python
from bench.index_work import Case

ROOT = Path(__file__).resolve().parents[1]
SIZES = (10_000, 100_000, 1_000_000)
HUGE = 10_000_000
WORKERS = (1, 8, 64)
MEMORY_FROM = 1_000_000
"""With fewer entries, memory that the preparation gave back hides what they take."""
CASE_S_MAX = 900
UNITS = {
    "store_blocks_s": ("store, 64 blocks per event", "blocks/s"),
    "store_cpu_ns": ("CPU per stored block", "ns"),
    "small_events_s": ("store, 1 block per event", "events/s"),
    "remove_blocks_s": ("remove, 64 blocks per event", "blocks/s"),
    "remove_cpu_ns": ("CPU per removed block", "ns"),
    "miss_us": ("look up a miss, 512 blocks, from bytes", "us"),
    "miss_list_us": ("look up a miss, 512 blocks, from a list", "us"),
    "medium_us": ("look up 512 matched blocks, from bytes", "us"),
    "medium_list_us": ("look up 512 matched blocks, from a list", "us"),
    "long_us": ("look up 8192 matched blocks (131 072 tokens), from bytes", "us"),
    "long_list_us": ("look up 8192 matched blocks, from a list", "us"),
    "groups_us": ("look up 8192 blocks that 8 workers hold to 8 depths", "us"),
    "bytes_per_entry": ("memory per (worker, block)", "bytes"),
    "drop_us": ("drop a worker", "us"),
    "sweep_step_us": ("longest change while it is swept", "us"),
    "dump_s": ("dump", "s"),
    "load_s": ("load a dump", "s"),
    "audit_s": ("audit", "s"),
    "audit_slice_us": ("longest slice of an audit", "us"),
}
HIGHER_IS_BETTER = ("store_blocks_s", "small_events_s", "remove_blocks_s")


def measure(options: Namespace) -> Iterator[Figure]:
    """All figures of all cases."""
    sizes = options.sizes or ((SIZES[0],) if options.quick else (*SIZES, HUGE) if options.huge else SIZES)
    for entries in sizes:
        for workers in options.workers:
            case = Case(entries, workers, 50 if options.quick else 200)
            ours = _run(sys.executable, "bench.index_case", case)
            peer: dict[str, float] = {}
            if options.peer_venv is not None:
                with _awake():
                    peer = _run(peer_python(options.peer_venv), "bench.index_peer", case)
            for name, (what, unit) in UNITS.items():
                other = peer.get(name.replace("_list_us", "_us"))
                title = f"{entries:.0e} x {workers}: {what}".replace("e+0", "e")
                yield Figure(title, ours[name], unit, other, lower_is_better=name not in HIGHER_IS_BETTER)


def _run(python: str, module: str, case: Case) -> dict[str, float]:
    command = [python, "-m", module, *map(str, case)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=CASE_S_MAX)
    if completed.returncode:
        sys.exit(f"{module} failed:\n{completed.stderr}")
    found: dict[str, float] = json.loads(completed.stdout)
    return found


@contextmanager
def _awake() -> Iterator[None]:
    """Another process runs all the time, so that no core is asleep when a thread is woken."""
    program = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(100_000))"
    with subprocess.Popen([sys.executable, "-c", program]) as spinner:
        try:
            yield
        finally:
            spinner.terminate()


def extend(parser: ArgumentParser) -> None:
    """The options of this measurement alone."""
    parser.add_argument("--huge", action="store_true", help="ten million entries, too: some 6 GB and ten minutes")
    parser.add_argument("--sizes", type=int, nargs="+", help="entries instead of 1e4, 1e5 and 1e6")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="instead of 1, 8 and 64")


if __name__ == "__main__":
    main("index", measure, extend)
