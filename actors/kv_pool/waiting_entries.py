"""WaitingEntries: entries of blocks whose files are not known to lie in a pool's folder yet, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from actors.kv_blocks.catalog_records import CatalogEntry
from actors.kv_cache.cache_mirror import NamedBlock

ENTRIES_WAITING_MAX = 32_768
"""Entries that wait, at some 250 bytes each."""


class WaitingEntries(OrderedDict[bytes, CatalogEntry]):
    """By the names of their files, the newest last. Beyond ENTRIES_WAITING_MAX the oldest go, and are counted; their
    blocks are named again when requests come to them."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0

    def wait(self, file: bytes, entry: CatalogEntry) -> None:
        """The entry is the newest one."""
        self[file] = entry
        self.move_to_end(file)
        if len(self) > ENTRIES_WAITING_MAX:
            self.popitem(last=False)
            self.dropped += 1


def entries_of(
    named: Iterable[NamedBlock], name_of: Callable[[int], bytes], tenant_of: Callable[[str], bytes]
) -> Iterator[tuple[bytes, CatalogEntry]]:
    """File and entry of each block that the mirror named. Some 2 us each; no I/O."""
    for name, block, parent, salt in named:
        if block and parent != 0:  # 0 stands for no parent
            yield name_of(name), CatalogEntry(block, parent, tenant_of(salt))
