"""Turns of reads: who waits, for how long, and what ends it."""

from __future__ import annotations

from actors.engines.vllm.read_turns import WAIT_MS, WAITING_MAX, ReadTurns


def test_blocks_that_do_not_fit_wait_until_others_are_scheduled() -> None:
    """Smaller ones that fit go before; a request that has begun goes on."""
    turns = ReadTurns(50)
    assert [turns.may_begin(name, 20, 0) for name in "abc"] == [True, True, False]
    assert turns.may_begin("small", 10, 1)
    assert not turns.may_begin("c", 20, 1)
    assert turns.may_begin("a", 20, 1)
    turns.scheduled(["small", "other"])
    assert turns.may_begin("other", 20, 1), "it was preempted: its turn would have no end"
    assert not turns.may_begin("c", 20, 2)
    turns.scheduled(["a", "a"])
    assert turns.may_begin("c", 20, 3)
    assert repr(turns) == "<ReadTurns 40 of 50 blocks, 0 wait>"


def test_a_request_that_ends_gives_its_turn_back() -> None:
    """Whether it was scheduled or not; one that ended waiting waits no longer."""
    turns = ReadTurns(10)
    assert turns.may_begin("a", 10, 0)
    assert not turns.may_begin("b", 10, 0)
    assert not turns.may_begin("c", 1, 0)
    turns.ended("b")
    turns.ended("a")
    assert turns.may_begin("c", 1, 1)
    turns.scheduled(["c"])
    turns.ended("c")
    assert repr(turns) == "<ReadTurns 0 of 10 blocks, 0 wait>"


def test_more_than_the_whole_part_is_read_alone() -> None:
    turns = ReadTurns(10)
    assert turns.may_begin("large", 11, 0)
    assert not turns.may_begin("b", 1, 0)
    turns.scheduled(["large"])
    assert turns.may_begin("b", 1, 0)


def test_a_wait_ends() -> None:
    """After WAIT_MS the request goes on, and takes no room from others."""
    turns = ReadTurns(10)
    turns.may_begin("a", 10, 0)
    assert not turns.may_begin("b", 5, 7)
    assert not turns.may_begin("b", 5, 7 + WAIT_MS - 1)
    assert turns.may_begin("b", 5, 7 + WAIT_MS)
    turns.scheduled(["a"])
    assert turns.may_begin("c", 10, 7 + WAIT_MS)


def test_so_many_wait_at_most() -> None:
    """A further one goes on at once."""
    turns = ReadTurns(10)
    turns.may_begin("a", 10, 0)
    assert not any(turns.may_begin(f"b{number}", 5, 0) for number in range(WAITING_MAX))
    assert turns.may_begin("further", 5, 0)
    assert repr(turns) == f"<ReadTurns 10 of 10 blocks, {WAITING_MAX} wait>"
