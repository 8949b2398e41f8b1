"""Ids and names of streams: text and bytes sort alike and read back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import CallerError
from core.ids import StreamName, from_column, new_id, to_column
from core.subjects import broker_stream, check_namespace, is_kv, kv_stream, owner, short_stream, subject, wildcard

ids = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")


@settings(deadline=None, max_examples=50)
@given(st.lists(ids))
def test_a_column_of_ids_reads_back(given_: list[str]) -> None:
    """from_column(to_column(ids)) == ids, 8 bytes each, and the columns sort as the texts do."""
    assert from_column(to_column(given_)) == given_
    assert len(to_column(given_)) == 8 * len(given_)
    assert sorted(given_) == [from_column(column)[0] for column in sorted(to_column([each]) for each in given_)]


def test_ids_are_new_each_time() -> None:
    """16 hex digits, as they stand in subjects and file names."""
    made = {new_id() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in made)


def test_names_of_streams_and_subjects_read_back() -> None:
    """The broker's names hold the namespace and nothing is lost on the way back."""
    stream = kv_stream(3)
    assert (stream, is_kv(stream), is_kv(StreamName("load"))) == ("kv_3", True, False)
    assert broker_stream("prod", stream) == "contrail_prod_kv_3"
    assert short_stream("prod", "contrail_prod_kv_3") == stream
    assert short_stream("pro", "contrail_prod_kv_3") is None
    assert subject("prod", stream, "ab") == "contrail.prod.kv_3.ab"
    assert wildcard("prod", stream) == "contrail.prod.kv_3.*"
    assert owner(subject("prod", stream, "ab")) == "ab"


@pytest.mark.parametrize("name", ["", "Prod", "a.b", "a b", "a_b", "é", "a" * 64, "*", ">"])
def test_a_namespace_that_cannot_stand_in_a_subject_is_refused(name: str) -> None:
    """CallerError shows the name and what may stand in one."""
    with pytest.raises(CallerError, match=r"namespace .*: use 1 to 63 of a-z, 0-9 and '-'"):
        check_namespace(name)
