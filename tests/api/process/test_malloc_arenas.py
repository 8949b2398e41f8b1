"""A front end's threads share one heap: memory that one of them gives back serves all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from api.deployment.process_specs import FRONTEND_ENVIRONMENT

PROGRAM = """
import threading
from pathlib import Path

ready = threading.Barrier(5)

def allocate():
    kept = [bytes(100_000) for _ in range(20)]
    ready.wait()  # all of them at once: who comes later could have the heap of one that is gone
    ready.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
ready.wait()
# glibc sets 64 MiB of addresses aside for each further heap, and may not use what it does not need yet
aside = [line for line in Path("/proc/self/maps").read_text().splitlines() if " ---p " in line]
sizes = [int(end, 16) - int(start, 16) for start, end in (line.split()[0].split("-") for line in aside)]
print(sum(size > 32 << 20 for size in sizes))
ready.wait()
"""


def heaps(*, one: bool) -> int:
    """How many beside the first one, in a process of its own."""
    environment = os.environ | (FRONTEND_ENVIRONMENT if one else {})
    command = [sys.executable, "-c", PROGRAM]
    return int(subprocess.run(command, env=environment, check=True, timeout=60, capture_output=True).stdout)


def test_threads_share_one_heap() -> None:
    """Where the C library would make more."""
    if not heaps(one=False):
        pytest.fail("this test can tell nothing: threads have no heaps of their own here")
    assert heaps(one=True) == 0
