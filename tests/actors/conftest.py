"""What all tests of actors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.router import request_scheduler


@pytest.fixture(autouse=True)
def no_long_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An answer that nobody can go on with fails soon, so that tests wait little."""
    monkeypatch.setattr(request_scheduler, "RESUME_WAIT_US", 200_000)
    yield
