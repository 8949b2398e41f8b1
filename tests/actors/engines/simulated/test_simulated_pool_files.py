"""The files of a simulated pool: found from the first on, written within grants, and evicted as by the real keeper."""

from __future__ import annotations

from actors.engines.simulated.simulated_pool_files import PoolCounts, PoolFiles
from actors.kv_blocks.catalog_records import CatalogEntry

CAPACITY = 32
LEAST = CAPACITY // 16


def write(files: PoolFiles, name: int, parent: int | None, now_us: int) -> None:
    """As soon as the keeper grants it: a grant that was not spent counts against the next one."""
    while not files.write("a", CatalogEntry(name, parent), 10 * name, now_us):
        files.grant(["a"], now_us)


def filled(*prompts: list[int]) -> PoolFiles:
    """The prompts' blocks lie there, each prompt used at the time of its number, from 1."""
    files = PoolFiles(CAPACITY)
    for number, prompt in enumerate(prompts, 1):
        for name, parent in zip(prompt, [None, *prompt], strict=False):
            write(files, name, parent, number)
        assert files.find(prompt, number) == [10 * name for name in prompt]
        files.touch(prompt, number)
    return files


def test_a_block_lies_there_from_the_end_of_its_write_on() -> None:
    """And is handed over once."""
    files = PoolFiles(CAPACITY)
    assert not files.write("a", CatalogEntry(1, None), 10, 5), "nothing was granted"
    files.grant(["a"], 0)
    for name, parent, end_us in ((1, None, 5), (2, 1, 7), (3, 2, 9)):
        assert files.write("a", CatalogEntry(name, parent), 10 * name, end_us)
    assert [files.find([1, 2, 3, 4], now_us) for now_us in (4, 5, 7)] == [[], [10], [10, 20]]
    assert files.take_new(7, 8) == [CatalogEntry(1, None)]
    assert files.take_new(10, 10) == [CatalogEntry(2, 1), CatalogEntry(3, 2)]
    assert files.take_new(10, 10) == []
    assert (len(files), 2 in files, 4 in files) == (3, True, False)
    assert repr(files) == f"<PoolFiles 3 of {CAPACITY} blocks>"


def test_the_tail_of_the_prompt_that_was_used_least_goes_first() -> None:
    files = filled(list(range(100, 115)), list(range(200, 210)), list(range(300, 305)))
    files.touch(list(range(100, 110)), 9)
    assert [*files.choose(10)] == [114, 113], "of 30 blocks two go, until an eighth of 32 is free"
    write(files, 400, None, 10)
    assert [*files.choose(10)] == [114, 113, 112]
    files.touch(list(range(100, 115)), 11)
    assert [*files.choose(11)] == [209, 208, 207]


def test_a_chosen_block_that_was_used_meanwhile_stays() -> None:
    files = filled(list(range(100, 130)))
    chosen = files.choose(5)
    assert [*chosen] == [129, 128]
    files.touch(list(range(100, 129)), 6)
    assert files.remove(chosen) == [129]
    assert files.counts == PoolCounts(stores=30, evictions=1)


def test_together_the_writers_never_exceed_the_capacity() -> None:
    """Half of what is free, less what was granted before; at least a sixteenth, while that fits."""
    files, name = PoolFiles(CAPACITY), 0
    for now_us, share in enumerate((8, 0, 4, 0, 2, 0, 1, 0, 1, 0, 0)):
        files.grant(["a", "b"], now_us)
        written = 0
        for writer in ("a", "b"):
            while files.write(writer, CatalogEntry(name, None), 0, now_us):
                name, written = name + 1, written + 1
        assert written == 2 * share, now_us
        files.find([], now_us)
    assert len(files) == name == CAPACITY
    files.grant([], 20)
    assert not files.write("a", CatalogEntry(99, None), 0, 20)


def test_two_may_write_one_block_and_a_writer_that_ends_writes_no_more() -> None:
    files = PoolFiles(CAPACITY)
    files.grant(["a", "b"], 0)
    for writer, name, end_us in (("a", 1, 3), ("b", 1, 4), ("a", 2, 5), ("b", 3, 6)):
        assert files.write(writer, CatalogEntry(name, None), name, end_us)
    files.end_writer("a", 4)
    assert files.find([1], 9) == [1]
    assert (2 in files, 3 in files) == (False, True)
    assert not files.write("a", CatalogEntry(4, None), 4, 9)
    assert files.take_new(10, 10) == [CatalogEntry(1, None), CatalogEntry(3, None)]
