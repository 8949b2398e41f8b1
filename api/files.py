"""How many files and connections this process may have open."""

from __future__ import annotations

import resource


def raise_file_limit() -> int:
    """As many as the system allows this process: shells and service managers mostly give it fewer. Returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
