"""Frames between a replica and a worker, cut out of a stream of bytes."""

from __future__ import annotations

import struct

import pytest

from actors.transport.framing import FrameSplitter
from core.errors import PeerError


def test_frames_are_cut_wherever_the_network_cuts() -> None:
    """One byte at a time or all at once, the same frames come out; a length above the bound is an error at once."""
    said = [b"", b"abc", bytes(300)]
    raw = b"".join(struct.pack("<I", len(body)) + body for body in said)
    for step in (1, 2, 5, len(raw)):
        splitter = FrameSplitter(300)
        cut = [bytes(body) for at in range(0, len(raw), step) for body in splitter.feed(raw[at : at + step])]
        assert cut == said
    with pytest.raises(PeerError, match="a frame of 301 bytes; at most 300"):
        list(FrameSplitter(300).feed(struct.pack("<I", 301)))


def test_a_frame_is_read_before_the_next_is_asked_for() -> None:
    """Its bytes are not copied: who keeps them longer finds nothing."""
    frames = list(FrameSplitter(300).feed(struct.pack("<I", 1) + b"x"))
    with pytest.raises(ValueError, match="released"):
        bytes(frames[0])
