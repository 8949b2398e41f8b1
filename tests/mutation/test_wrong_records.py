"""Each wrong term of a record is named, or excused by exactly those messages that it may rest on."""

from __future__ import annotations

import pytest

from tests.mutation.wrong_records import LACKS, MENDED, WORKERS, findings, write_logs

CACHED, IN_FLIGHT = (
    ("overlap", "overlap_all", "known", "prefill"),
    ("pending", "active_blocks", "active_requests", "prefill"),
)
ALL, RIGHT = (*WORKERS,), ("right",)
EXCUSED: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "nothing": ("", (), ()),
    "lost cache event": ("gap", CACHED, RIGHT),
    "lost report": ("gap", ("waiting",), RIGHT),
    "lost request": ("gap", IN_FLIGHT, ALL),
    "lost request, noticed": ("gap", IN_FLIGHT, ALL),
    "deleted event of another model": ("", (), ()),
    "cut reports": ("cut", ("waiting",), ALL),
    "other epoch of caches": ("replaced", CACHED, ALL),
    "other epoch of reports": ("replaced", ("waiting",), ALL),
    "limited reports": ("end", ("waiting",), ALL),
    "limited caches": ("end", CACHED, ALL),
}
"""By log: the reason, and the columns and workers that it excuses."""
COLUMNS = {*CACHED, *IN_FLIGHT, "waiting"}
UNREPORTED = {"cut decisions", "limited caches", "limited reports"}
"""Logs in which the last report agrees with no fold of the log: retention took the names of replicas, or its place."""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """By log and record."""
    folder = tmp_path_factory.mktemp("wrong")
    write_logs(folder)
    return {name: {each.name: each.verdict for each in findings(folder / name)} for name in LACKS}


@pytest.mark.parametrize("name", EXCUSED)
def test_columns_are_excused_by_what_they_rest_on(verdicts: dict[str, dict[str, str]], name: str) -> None:
    found, (reason, columns, workers) = verdicts[name], EXCUSED[name]
    for column in COLUMNS:
        for worker in WORKERS:
            is_excused = column in columns and worker in workers
            expected = {f"not judged: {reason}"} if is_excused else {f"{column} {worker}", "cursor"}
            assert found[f"kv: {column} of {worker}"] in expected


@pytest.mark.parametrize("name", [name for name in LACKS if name not in UNREPORTED])
def test_nothing_is_excused_behind_a_report_on_equal_folds(verdicts: dict[str, dict[str, str]], name: str) -> None:
    found = {record: verdict for record, verdict in verdicts[name].items() if record.startswith(MENDED)}
    assert [record for record, verdict in found.items() if verdict == "verified"] == [f"{MENDED}: right"]
    assert [record for record, verdict in found.items() if verdict.startswith("not judged")] == []


@pytest.mark.parametrize("name", [name for name in LACKS if name != "epoch that nothing names"])
def test_a_right_record_is_no_difference(verdicts: dict[str, dict[str, str]], name: str) -> None:
    right = [verdict for record, verdict in verdicts[name].items() if record.endswith(": right")]
    assert right
    assert [verdict for verdict in right if verdict != "verified" and not verdict.startswith("not judged")] == []
