"""All chances of a world come from its seed, those of the code under test too."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(random_: random.Random) -> Iterator[None]:
    """Within it, `secrets` gives what this generator draws: ids, seeds of decisions, names."""
    before = {name: getattr(secrets, name) for name in ("token_hex", "token_bytes", "randbits")}
    replaced = {
        "token_hex": lambda size=32: random_.randbytes(size).hex(),
        "token_bytes": lambda size=32: random_.randbytes(size),
        "randbits": random_.getrandbits,
    }
    for name, function in replaced.items():
        setattr(secrets, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(secrets, name, function)
