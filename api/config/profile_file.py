"""The file of a measured profile, read."""

from __future__ import annotations

from pathlib import Path

from core.errors import CallerError
from projections.scaling.measured_profile import BYTES_MAX, MeasuredProfile


def read_profile(file: Path) -> MeasuredProfile:
    """The profile in the file. CallerError if it cannot be read, or is none."""
    try:
        with file.expanduser().open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
    except OSError as error:
        raise CallerError(f"cannot read the profile in {file}: {error.strerror}") from error
    if len(content) > BYTES_MAX:
        raise CallerError(f"{file} is no profile of an engine: it is longer than {BYTES_MAX} bytes")
    return MeasuredProfile.decode_file(content, str(file))
