"""TraceFile: a file with a trace, and the format that it has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from core.errors import CallerError
from replay.recording.recording import Recording
from replay.simulate.mooncake import read_mooncake
from replay.simulate.recorded_workload import recorded_block_size, recorded_trace
from replay.simulate.workload import Trace
from streams.archive.archive_format import MAGIC

AUTO, MOONCAKE, RECORDING = FORMATS = ("auto", "mooncake", "recording")
BLOCK_SIZE = 64
"""Tokens per block where the trace has none: Dynamo's usual ones."""


class TraceFile(NamedTuple):
    """A file, and what of it is wanted."""

    path: Path
    format: str = AUTO
    """Of FORMATS."""
    first: int = 0
    """Requests; 0 for all."""
    model: str = ""
    """In a recording; empty if it has only one."""

    def check(self) -> None:
        """CallerError if the model counts for nothing, or the file cannot be read."""
        if self.model and self._named() == MOONCAKE:
            raise CallerError(f"{self.path} is in Mooncake's format, which names no models: leave --model out")

    def read(self) -> Trace:
        """The requests; CallerError or Corrupt says what is wrong with the file."""
        if self._named() == MOONCAKE:
            return read_mooncake(self.path, self.first)
        with Recording.open(self.path) as recording:
            return recorded_trace(recording, self.model, self.first)

    def block_size(self) -> int:
        """What blocks to simulate if nobody says: those of the recording, or BLOCK_SIZE. CallerError or Corrupt if the
        file cannot be read."""
        if self._named() == MOONCAKE:
            return BLOCK_SIZE
        with Recording.open(self.path) as recording:
            return recorded_block_size(recording, self.model) or BLOCK_SIZE

    def _named(self) -> str:
        assert self.format in FORMATS
        return self.format if self.format != AUTO else _format(self.path)


def _format(path: Path) -> str:
    """A recording begins with its mark."""
    try:
        with path.open("rb") as file:
            return RECORDING if file.read(len(MAGIC)) == MAGIC else MOONCAKE
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}") from error
