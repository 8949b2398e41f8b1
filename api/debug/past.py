"""Past: what the page looks at: an archive that may grow, its timeline, and its states at any moment.

Everything here but the timeline's reading is done by one thread (`api.debug.desk`).
"""

from __future__ import annotations

from collections.abc import Iterator

from api.debug.folding import Folding
from api.debug.scan import Scan
from api.debug.timeline import Timeline
from core.errors import Unavailable
from core.keys import DeploymentKey
from core.subjects import ROUTING
from replay.recording.recording import Cursor, Recording
from streams.archive.archive_reader import ArchiveReader


class Past:
    """See the module's text."""

    def __init__(self, key: DeploymentKey | None, *, messages_expected: int = 0) -> None:
        self.scan = Scan()
        self.folding = Folding(self._keep, messages_expected)
        self._key = key
        self._newest: Recording | None = None
        self._settled: Recording | None = None
        """Another than the newest while nobody asks for what only the newest has: its index took a second to make."""
        self._keyframes: list[tuple[Cursor, bytes]] = []

    def __repr__(self) -> str:
        return f"<Past {self.scan!r}, {self.folding!r}>"

    @property
    def timeline(self) -> Timeline:
        """Of all that was read so far."""
        return self.scan.timeline

    @property
    def proved(self) -> bool:
        """Whether chains are checked with the deployment's key."""
        return self._newest is not None and self._newest.proved

    def show(self, archive: ArchiveReader) -> Iterator[None]:
        """From now on this is the archive: the one before, grown. The steps read and fold what is new in it; they may
        be left for those of the next one."""
        before = self._newest
        if before is not None and before is not self._settled:
            before.close()
        try:
            self._newest = newest = Recording(archive, self._key)
        except BaseException:  # whatever it was, nobody else would close the file
            archive.close()
            raise
        for keyframe in self._keyframes:
            newest.keep(*keyframe)
        if before is None:
            first = newest.state_before({s: archive.span(s).first_seq - 1 for s in newest.streams})
            self.timeline.begin(first)
            self.folding.begin(first)
        return self._steps(newest)

    def _steps(self, recording: Recording) -> Iterator[None]:
        yield from self.scan.steps(recording.archive)
        if self._settled is None:
            _ = self.recording().names  # and the index with it
            yield
        yield from self.folding.steps(recording)

    @property
    def newest(self) -> Recording:
        """All that there is; its index and names may have to be made first, if they are asked for."""
        if self._newest is None:
            raise Unavailable("the log is still being copied: a moment")
        return self._newest

    def recording(self, routing_seq: int = 0) -> Recording:
        """One that has at least this message of the routing stream, if there is one; with an index, if it can be."""
        newest = self.newest
        settled = self._settled
        if settled is None or settled.end.get(ROUTING, 0) < routing_seq:
            if settled is not None and settled is not newest:
                settled.close()
            self._settled = settled = newest
        return settled

    def close(self) -> None:
        """Nothing is read any more."""
        for recording in {self._newest, self._settled} - {None}:
            assert recording is not None
            recording.close()

    def _keep(self, cursor: Cursor, content: bytes) -> None:
        self._keyframes.append((cursor, content))
        for recording in {self._newest, self._settled} - {None}:
            assert recording is not None
            recording.keep(cursor, content)
