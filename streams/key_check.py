"""The check of a deployment's key against its log and its registry, before the first append or registration.

1. Streams carry the fingerprints of their deployment's key, and the registry has them beside the registrations.
2. A key that contradicts a fingerprint is refused, and so is one that has not the newest generation.
3. Streams of the version before have no fingerprints. There the chains decide: a message names the digest of the one
   before it, which only the deployment's key gives.
4. A log without any evidence is taken for the key's own, and gets its fingerprints.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec

from core.codec import decode_message, digest, generation_of, key_of, newest_generation
from core.errors import CallerError, Corrupt
from core.ids import StreamName, StreamSeq
from core.keys import DeploymentKey
from core.subjects import SNAPSHOTS
from streams.log import EventLog, Fingerprints
from streams.registry import Registry

REGISTRY_KEY = "key-fingerprints"
"""Beside the registrations: a JSON object of the fingerprints by generation."""
MESSAGES_MAX = 1024
"""Newest messages of a stream that are read for evidence."""
PAIRS_MAX = 64
"""Pairs of neighbours in a chain that fit no key of ours, after which a stream is given up."""
NOT_THE_KEY = (
    "give the key of that deployment with --key-file, or another --namespace for a deployment with a key of its own"
)

_logger = logging.getLogger(__name__)


class CheckedKey(NamedTuple):
    """The key of a part that starts, with the place of its file."""

    key: DeploymentKey
    namespace: str
    file: Path | None
    """None if the key did not come from a file."""

    @property
    def fingerprints(self) -> Fingerprints:
        """Those that the streams and the registry are to have."""
        return self.key.fingerprints(self.namespace)

    @property
    def text(self) -> str:
        """The key's place, and its newest fingerprint."""
        return f"the key in {self.file or 'this process'} is {self._newest}"

    @property
    def _newest(self) -> str:
        generation = str(self.key.generation)
        return f"{self.fingerprints[generation]} (generation {generation})"


def fault(there: Fingerprints, place: str, checked: CheckedKey) -> str | None:
    """The sentence for people if these fingerprints, found at that place, are not the key's; None if they may be."""
    own = checked.fingerprints
    generations = sorted(int(name) for name in there if name.isdigit())
    if not generations:
        return None
    newest = generations[-1]
    found = f"{there[str(newest)]} (generation {newest})"
    common = own.keys() & there.keys()
    if not common or any(own[name] != there[name] for name in common):
        return (
            f"namespace {checked.namespace} belongs to another deployment: {place} names the key {found}, "
            f"and {checked.text}: {NOT_THE_KEY}"
        )
    if newest > checked.key.generation:
        return (
            f"the key of namespace {checked.namespace} was changed: {place} names {found}, and {checked.text}: "
            "copy the key file of the deployment to this machine"
        )
    return None


class ChainEvidence(Enum):
    """The relation of a stream's newest messages to a key."""

    FITS = "fits"
    FOREIGN = "foreign"
    NONE = "none"


async def chain_evidence(log: EventLog, stream: StreamName, chain_key: bytes) -> ChainEvidence:
    """FITS if any message continues the one before it by this key; FOREIGN if messages do, and none by this key.

    A message under a generation that was removed from the key is no evidence.
    """
    state, foreign = await log.state(stream), 0
    following: dict[tuple[str, int], bytes] = {}
    """The digest that the message with this source and number must have."""
    for seq in range(state.last_seq, max(state.first_seq, state.last_seq + 1 - MESSAGES_MAX) - 1, -1):
        record = await log.at(stream, StreamSeq(seq))
        if record is None:
            continue
        try:
            message = decode_message(record.payload)
        except Corrupt:
            continue
        following[message.source, message.n - 1] = message.prev
        expected, generation = following.pop((message.source, message.n), None), generation_of(record.payload)
        was_removed = key_of(chain_key, generation) is None and generation <= newest_generation(chain_key)
        if expected is None or was_removed:
            continue
        if digest(record.payload, chain_key) == expected:
            return ChainEvidence.FITS
        foreign += 1
        if foreign >= PAIRS_MAX:
            break
    return ChainEvidence.FOREIGN if foreign else ChainEvidence.NONE


async def ensure_own(
    log: EventLog, streams: list[StreamName], readable: Sequence[StreamName], checked: CheckedKey
) -> None:
    """The streams exist, and have the key's fingerprints as far as our credentials allow. CallerError, and nothing
    was written, if they are another deployment's; of streams without fingerprints only `readable` ones are read."""
    there = [stream for stream in await log.streams() if stream in streams]
    bare = [stream for stream in there if not await _compared(log, stream, checked)]
    await _compare_chains(log, [it for it in bare if it in readable and it != SNAPSHOTS], checked)
    await log.ensure(streams, checked.fingerprints)
    for stream in streams:  # another deployment may have been quicker
        await _compared(log, stream, checked)


async def _compared(log: EventLog, stream: StreamName, checked: CheckedKey) -> bool:
    """False if the stream has no fingerprint."""
    found = await log.fingerprints(stream)
    if (text := fault(found, f"stream {stream}", checked)) is not None:
        raise CallerError(text)
    return bool(found)


async def _compare_chains(log: EventLog, streams: Sequence[StreamName], checked: CheckedKey) -> None:
    foreign = None
    for stream in streams:
        match await chain_evidence(log, stream, checked.key.chain_key):
            case ChainEvidence.FITS:
                return
            case ChainEvidence.FOREIGN:
                foreign = foreign or stream
            case ChainEvidence.NONE:
                pass
    if foreign is not None:
        raise CallerError(
            f"namespace {checked.namespace} belongs to another deployment: the newest messages of stream {foreign} are "
            f"sealed with another key, and {checked.text}: {NOT_THE_KEY}"
        )


async def register_own(registry: Registry, checked: CheckedKey) -> None:
    """The registry has the key's fingerprints. CallerError, and nothing was written, if it has another deployment's."""
    there = await registered_fingerprints(registry)
    if (text := fault(there, f"{REGISTRY_KEY} in etcd", checked)) is not None:
        raise CallerError(text)
    merged = {**checked.fingerprints, **there}
    if merged != there:
        await registry.put(REGISTRY_KEY, msgspec.json.encode(merged))


async def registered_fingerprints(registry: Registry) -> Mapping[str, str]:
    """The fingerprints in the registry; none if the value cannot be read."""
    for change in await registry.get(REGISTRY_KEY):
        try:
            return msgspec.json.decode(change.value or b"{}", type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _logger.warning("%s in the registry cannot be read: %s", change.key, error)
    return {}
