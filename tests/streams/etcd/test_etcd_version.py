from __future__ import annotations

import pytest

from streams.etcd.etcd_version import EtcdVersion


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.5.1", (3, 5, 1)),
        ("v3.6.0-rc.1", (3, 6, 0)),
        ("3.4.23+dfsg", (3, 4, 23)),
        ("3.5", None),
        ("3.5.1.2", None),
        ("3.5.12345678901", None),
        ("not provided", None),
        ("", None),
    ],
)
def test_parse(text: str, version: tuple[int, int, int] | None) -> None:
    assert EtcdVersion.parse(text) == version


@pytest.mark.parametrize(
    ("version", "sound"),
    [
        ((3, 3, 27), False),
        ((3, 4, 19), False),
        ((3, 4, 20), True),
        ((3, 5, 0), False),
        ((3, 5, 8), False),
        ((3, 5, 9), True),
        ((3, 6, 0), True),
        ((3, 10, 0), True),
        ((4, 0, 0), True),
        ((2, 9, 9), False),
    ],
)
def test_sound(version: tuple[int, int, int], sound: bool) -> None:
    assert EtcdVersion(*version).sound is sound


def test_data_are_opened_by_the_same_minor_release_and_by_the_next() -> None:
    written = EtcdVersion(3, 5, 9)
    opens = [minor for minor in range(3, 9) if EtcdVersion(3, minor, 0).opens(written)]
    assert opens == [5, 6]
    assert not EtcdVersion(4, 5, 0).opens(written)
