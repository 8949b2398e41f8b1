"""Ids that people have in hand, and the requests that they mean by them: in a file, and in a log that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import CallerError
from core.events import Event
from core.events.routing import RequestTurnedAway
from core.subjects import LOAD
from replay.recording.moment import READ_BACK, find_request, last_request
from replay.recording.request_names import NAMED_MAX, PART_MIN, only_one, possible_ids
from streams.archive.archive_log import ArchiveLog
from tests.projections.facts import joined, load, routed
from tests.replay.staged import KV, A, Stage

FIRST, SECOND, THEIRS = "req-00aa11bb22cc33dd", "req-99ee88ff77aa66bb", "order-17"


def turned_away(request: str, tenant: str = "") -> Event:
    return RequestTurnedAway(
        request=request, model="tiny", reason="queue_full", status=429, waited_ms=-1, tenant=tenant
    )


@pytest.fixture
def stage() -> Stage:
    """Three requests, one of them by a client's id, which a second one had at the same time."""
    it = Stage()
    it.say(KV, A, joined("a"))
    it.say(LOAD, A, load())
    it.replica()
    for request in (FIRST, SECOND, THEIRS, f"{THEIRS}.0123abcd"):
        it.tell(routed(request, A))
    return it


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        (FIRST, FIRST),
        (f"chatcmpl-{FIRST}", FIRST),
        (f"cmpl-{SECOND}", SECOND),
        (f"resp_{THEIRS}", THEIRS),
        (f"msg_{FIRST}", FIRST),
        (f"msg_{FIRST}_0", FIRST),
        (f"fc_{THEIRS}_12", THEIRS),
        ("33dd", FIRST),
        ("req-99", SECOND),
        ("order", THEIRS),
        ("3dd", "3dd"),
        ("nobody", "nobody"),
        (f"{THEIRS}.0123abcd", f"{THEIRS}.0123abcd"),
    ],
)
async def test_a_request_by_what_a_person_has_in_hand(stage: Stage, tmp_path: Path, text: str, request_: str) -> None:
    """Its id, that of its answer or of an item of it, or a part that no other id begins or ends with. A file and a
    log that runs say the same; what the log does not know stays as it is."""
    with stage.recording(tmp_path / "log") as recording:
        assert recording.requests.named(text) == request_
        log = ArchiveLog(recording.archive)
        if request_ == text and text not in {FIRST, f"{THEIRS}.0123abcd"}:
            with pytest.raises(CallerError, match=rf"'{text}' is no time \(.*\), no sequence \(.*\), and no request"):
                await find_request(log, text)
        else:
            found = await find_request(log, text)
            assert found.request == request_
            assert found.record.seq == recording.requests.uses(request_)[-1][0].seq


async def test_a_part_of_several_ids_is_refused(stage: Stage, tmp_path: Path) -> None:
    """With the ids that it may mean, the first of them by name."""
    with stage.recording(tmp_path / "log") as recording:
        said = f"'req-' begins or ends the ids of 2 requests: {FIRST}, {SECOND}; give more"
        with pytest.raises(CallerError, match=said):
            recording.requests.named("req-")
        with pytest.raises(CallerError, match=said):
            await find_request(ArchiveLog(recording.archive), "req-")
    many = [f"abcd-{at}" for at in range(NAMED_MAX + 3)]
    with pytest.raises(CallerError, match=f"{many[NAMED_MAX - 1]} and 3 more"):
        only_one("abcd", many)


async def test_an_id_that_looks_like_that_of_an_answer_is_the_clients_own(stage: Stage, tmp_path: Path) -> None:
    """A client may give any id: the whole text comes before the id in it."""
    stage.tell(routed(f"chatcmpl-{FIRST}", A))
    with stage.recording(tmp_path / "log") as recording:
        assert recording.requests.named(f"chatcmpl-{FIRST}") == f"chatcmpl-{FIRST}"
        found = await find_request(ArchiveLog(recording.archive), f"chatcmpl-{FIRST}")
        assert found.request == f"chatcmpl-{FIRST}"


@pytest.mark.parametrize("text", ["", "chatcmpl-", "msg_", "msg__0", "_0"])
def test_no_id_is_empty(text: str) -> None:
    assert all(possible_ids(text))


def test_a_part_has_a_length() -> None:
    """Fewer characters would mean other requests tomorrow."""
    assert PART_MIN == 4


async def test_the_last_request(stage: Stage, tmp_path: Path) -> None:
    """Routed or refused; of a tenant, his; however many other messages stand behind it."""
    with stage.recording(tmp_path / "empty") as recording:
        assert (await last_request(ArchiveLog(recording.archive))).request == f"{THEIRS}.0123abcd"
    stage.tell(turned_away("refused", "team"))
    for number in range(READ_BACK + 1):
        stage.tell(turned_away(f"other-{number}"))
    with stage.recording(tmp_path / "log") as recording:
        log, last = ArchiveLog(recording.archive), f"other-{READ_BACK}"
        mine = await last_request(log, "team")
        assert (mine.request, mine.tenant) == ("refused", "team")
        assert (await last_request(log)).request == last
        found, theirs = recording.requests.last(), recording.requests.last("team")
        assert found is not None and theirs is not None
        assert (found.request, theirs.request) == (last, "refused")
        assert recording.requests.last("nobody") is None
        with pytest.raises(CallerError, match="no request of tenant 'nobody' was routed yet"):
            await last_request(log, "nobody")


async def test_a_log_without_requests_says_so(tmp_path: Path) -> None:
    stage = Stage()
    stage.replica()
    with stage.recording(tmp_path / "log") as recording:
        assert recording.requests.last() is None
        with pytest.raises(CallerError, match="no request was routed yet: send one"):
            await last_request(ArchiveLog(recording.archive))
