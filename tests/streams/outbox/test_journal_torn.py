"""A kill between any two stores, or in the middle of one, leaves a journal that reads as before or as after."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from core.codec import DECISIONS, decode_message, is_decision
from core.events import DecisionCounts, Event
from streams.outbox.backlog import OutboxLimits
from streams.outbox.journal_file import HEADER_BYTES, JournalFile
from tests.projections.facts import routed
from tests.streams.left import acknowledge, left_journal, new_journal, put, seal_next, told_by
from tests.streams.source import SOURCE, said

LIMITS = OutboxLimits(events_max=4)
CAPACITY = 2048

Outcome = tuple[int, tuple[str, ...]]
"""How many messages are acknowledged, and what a successor would tell."""


class Killed:
    """Copies of the file as a kill at any moment leaves it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: list[bytes] = []
        self._path = path
        for name in ("write", "mark", "release", "keep_counts"):
            monkeypatch.setattr(JournalFile, name, self._watched(getattr(JournalFile, name)))

    def _watched(self, real: Any) -> Any:
        def watched(file: JournalFile, *arguments: Any) -> Any:
            if file.path != self._path:
                return real(file, *arguments)
            before = self._path.read_bytes()
            result = real(file, *arguments)
            self.images += torn(before, self._path.read_bytes())
            return result

        return watched


def torn(before: bytes, after: bytes) -> list[bytes]:
    """Some of the changed bytes are stored, from the front or from the back; and none, and all."""
    changed = [i for i, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    if not changed:
        return [before]
    cuts = {changed[0], changed[len(changed) // 3], changed[len(changed) // 2], changed[-1]}
    front = [after[:cut] + before[cut:] for cut in sorted(cuts)]
    back = [before[:cut] + after[cut:] for cut in sorted(cuts)]
    return [*front, *back, after]


def outcome(path: Path, image: bytes) -> Outcome:
    path.write_bytes(image)
    journal = left_journal(path, LIMITS)
    found = journal.standing.n_acked, tuple(told_by(journal))
    journal.close(delete=True)
    return found


def test_killed_between_any_two_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through puts, seals, acknowledgements, overflows and laps of the ring: never a wrong event, none missing."""
    journal = new_journal(tmp_path, CAPACITY, LIMITS)
    killed = Killed(tmp_path / f"{SOURCE}.journal", monkeypatch)
    held: list[str] = []
    checked = 0
    for turn in range(60):
        for step in ("put", "put", "seal", "put", "put", "put", "clear", "put", "acknowledge"):
            if step == "clear" and turn % 7:
                continue
            before = (turn, tuple(held))
            n_acked = turn
            if step == "put":
                name = f"{turn}.{len(held)}" + "x" * (13 * turn % 50)
                held += [name] if journal.offer(said(name)) else []
            elif step == "seal":
                sealed = seal_next(journal)
            elif step == "clear":
                del held[sealed.events :]
                journal.clear()
            else:
                del held[: sealed.events]
                n_acked += 1
                acknowledge(journal, sealed, n_acked)
            allowed = {before, (n_acked, tuple(held))}
            for image in killed.images:
                assert outcome(tmp_path / "copy.journal", image) in allowed, (turn, step)
                checked += 1
            killed.images.clear()
    assert journal.standing.events_from > 3 * CAPACITY
    assert checked > 2000
    journal.close(delete=True)


def test_counts_of_a_killed_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions in acknowledged messages and those that a successor tells are those made less those dropped, whenever
    the process was killed."""
    journal = new_journal(tmp_path, CAPACITY, LIMITS)
    killed = Killed(tmp_path / f"{SOURCE}.journal", monkeypatch)
    in_messages = [0]
    """Decisions in the first messages, by their number."""
    checked = 0
    for turn in range(40):
        sealed = None
        for step in ("decide", "put", "decide", "seal", "put", "decide", "clear", "drop", "decide", "acknowledge"):
            if step in {"clear", "drop"} and turn % 3:
                continue
            if step == "decide":
                journal.offer(decision(turn))
            elif step == "put":
                journal.offer(said("x" * (13 * turn % 50)))
            elif step == "drop":
                journal.note_dropped(decision(turn))
            elif step == "clear":
                journal.clear()
            elif step == "seal":
                sealed = seal_next(journal)
                in_messages.append(in_messages[-1] + decisions_in(sealed.payload))
            else:
                assert sealed is not None
                acknowledge(journal, sealed, turn + 1)
            for image in killed.images:
                made_less_dropped, told = counted(tmp_path / "copy.journal", image, in_messages)
                assert made_less_dropped == told, (turn, step)
                checked += 1
            killed.images.clear()
    assert checked > 1000
    journal.close(delete=True)


def decision(number: int) -> Event:
    return routed(f"{number}", "a" * 16)


def decisions_in(payload: bytes) -> int:
    return sum(type(event) in DECISIONS for event in decode_message(payload).events)


def counted(path: Path, image: bytes, in_messages: list[int]) -> tuple[int, int]:
    """Decisions made less those dropped, by the journal; and those that the log has when a successor has told all."""
    path.write_bytes(image)
    journal = left_journal(path, LIMITS)
    counts = journal.decision_counts or DecisionCounts(0)
    sealed = journal.in_flight()
    told = in_messages[journal.standing.n_acked] + (decisions_in(sealed.payload) if sealed else 0)
    while (encoding := journal.peek()) is not None:
        told += is_decision(encoding)
        journal.skip()
    journal.close(delete=True)
    return counts.made - counts.dropped, told


def journal_bytes(folder: Path) -> bytes:
    """One message acknowledged, one in flight, two events waiting."""
    journal = new_journal(folder, CAPACITY)
    put(journal, "a")
    acknowledge(journal, seal_next(journal), 1)
    put(journal, "b", "c")
    seal_next(journal)
    put(journal, "d", "e")
    journal.close(delete=False)
    return (folder / f"{SOURCE}.journal").read_bytes()


def test_cut_anywhere(tmp_path: Path) -> None:
    """A file that lost its end within the ring gives what stood before it."""
    whole = journal_bytes(tmp_path)
    expected = ["b", "c", "d", "e"]
    used = len(whole.rstrip(b"\0"))
    for length in range(HEADER_BYTES, used + 1):
        path = tmp_path / "copy.journal"
        path.write_bytes(whole[:length])
        journal = left_journal(path)
        try:
            found = told_by(journal)
        except Exception as error:  # the message in flight is lost: the one who tells it says so
            assert "cannot be read" in str(error)
            found = []
        assert found == expected[: len(found)]
        journal.close(delete=True)
    assert found == expected


def test_copies_of_other_laps_are_no_records(tmp_path: Path) -> None:
    """Bytes that were a record at another offset, even at the same place of the ring, do not read as one."""
    journal = new_journal(tmp_path, CAPACITY)
    names = []
    for lap in range(3):
        for i in range(40):
            name = f"{lap}.{i:02}"  # all of one size: records of all laps stand at the same places
            put(journal, name)
            names.append(name)
            acknowledge(journal, seal_next(journal), 1)
    put(journal, "last")
    shutil.copy(tmp_path / f"{SOURCE}.journal", tmp_path / "copy.journal")
    left = left_journal(tmp_path / "copy.journal")
    assert told_by(left) == ["last"]
    journal.close(delete=True)
    left.close(delete=True)
