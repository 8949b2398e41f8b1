"""What tests of attacks share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user may enter."""
    path = Path(tempfile.mkdtemp(prefix="contrail-open-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
