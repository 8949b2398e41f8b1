"""WriteCredit: how many bytes each worker of a pool of objects may have written in all, as the pool's keeper says.

The numbers are totals since the worker's start. Its reports say how much of its credit is spent; the difference may
be written at any time. So a worker that sees a higher number late only writes less, and no clock is compared. A lower
number frees nothing until the worker's beat says that its engine has it. So the bytes hold by arithmetic, but for
blocks whose write began at that moment: one for each thread that writes.

Each keeper has a credit of its own, under its fence. The one with the highest fence counts, and goes on from the one
before. A keeper whose fence is not the highest is superseded.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import msgspec

from actors.kv_blocks.pool_folder import replace_file
from actors.kv_blocks.write_grant import KeeperSuperseded
from actors.kv_objects.object_store import ObjectStore
from actors.kv_objects.pool_objects import CREDIT, KEEPERS, ObjectSeal

CREDIT_FILE = "write-credit"
_KEY = re.compile(rf"{KEEPERS}/([0-9a-f]{{16}})/.*")


class WriteCredit(msgspec.Struct, frozen=True):
    """Totals since each worker's start, by its name. One of the dictionaries has no worker that another lacks."""

    may_write: dict[str, int] = msgspec.field(default_factory=dict)
    finished: dict[str, int] = msgspec.field(default_factory=dict)
    """Bytes of which the keeper knew then that they were written."""
    obeyed: dict[str, int] = msgspec.field(default_factory=dict)
    """The credit that the worker said last that it has."""


def keeper_keys(objects: ObjectStore) -> dict[int, list[str]]:
    """The objects of all keepers, by their fences in order. OSError."""
    found: dict[int, list[str]] = {}
    for each in objects.list(KEEPERS):
        if named := _KEY.fullmatch(each.key):
            found.setdefault(int(named[1], 16), []).append(each.key)
    return dict(sorted(found.items()))


def newest_credit(objects: ObjectStore, seal: ObjectSeal) -> WriteCredit:
    """The credit that counts; an empty one if there is none, or it proves nothing. OSError."""
    for fence in reversed(keeper_keys(objects)):
        with suppress(FileNotFoundError):  # the keeper is about to write it, or an older one's went
            return read_credit(objects, seal, fence)
    return WriteCredit()


def read_credit(objects: ObjectStore, seal: ObjectSeal, fence: int) -> WriteCredit:
    """That keeper's; an empty one if it proves nothing. OSError, FileNotFoundError."""
    key = credit_key(fence)
    body = seal.open(key, objects.get(key))
    return WriteCredit() if body is None else msgspec.json.decode(body, type=WriteCredit)


def credit_key(fence: int) -> str:
    """Of the keeper with that fence."""
    return f"{KEEPERS}/{fence:016x}/{CREDIT}"


def write_local(shared: Path, may_write: int) -> None:
    """The engine of this worker may have written so many bytes in all. OSError."""
    replace_file(shared / CREDIT_FILE, str(may_write).encode())


def read_local(shared: Path) -> int:
    """Bytes that this worker's engine may have written in all; 0 if none are known. Some 30 us."""
    try:
        return int((shared / CREDIT_FILE).read_text("ascii"))
    except (OSError, ValueError):
        return 0


class ObjectFence:
    """A keeper's place in the order of the pool's keepers. All methods block."""

    def __init__(self, objects: ObjectStore, seal: ObjectSeal, claim: int) -> None:
        """The keeper is the newest; its fence is `claim`, the revision of its claim in the registry, unless a registry
        that lost its data counted anew: then the next one after the highest. OSError, also if another keeper took the
        same fence at this moment."""
        self._objects = objects
        self._seal = seal
        before = keeper_keys(objects)
        self.fence = max([claim, *(fence + 1 for fence in before)])
        self.credit = newest_credit(objects, seal)
        """As it was written last, at first by the keeper before."""
        if not objects.create(credit_key(self.fence), self._sealed(self.credit)):
            raise OSError(f"another keeper took the fence {self.fence} just now")

    def __repr__(self) -> str:
        return f"<ObjectFence {self.fence}>"

    def check(self) -> None:
        """Returns if no newer keeper has come; KeeperSuperseded if one has. A listing. OSError."""
        newest = max([self.fence, *keeper_keys(self._objects)])
        if newest > self.fence:
            raise KeeperSuperseded(f"the keeper with fence {newest} came after this one with {self.fence}")

    def give(self, credit: WriteCredit) -> None:
        """The workers have this credit from now on. OSError; KeeperSuperseded as for `check`."""
        if credit != self.credit:
            self.check()
            self._objects.put(credit_key(self.fence), self._sealed(credit))
            self.credit = credit

    def remove_older(self) -> None:
        """Objects of keepers before this one are gone. OSError."""
        self._objects.delete(
            [key for fence, keys in keeper_keys(self._objects).items() if fence < self.fence for key in keys]
        )

    def _sealed(self, credit: WriteCredit) -> bytes:
        return self._seal.seal(credit_key(self.fence), msgspec.json.encode(credit))
