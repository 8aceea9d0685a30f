"""Bytes of a pool file: header, cursor slots, seal, seed table, corrections, setup material.

======================  ===============================================================
offset                  content
======================  ===============================================================
0                       magic, version, header length, SHA-256 of all of it and the JSON
52                      header, canonical JSON, at most 16 KiB with its prefix
16384, 20480            two cursor slots; the valid one with the higher sequence counts
24576                   seal: length and SHA-256 of the setup material
28672                   seed table: 64 bytes a run, seed and check value; zeros once spent
next multiple of 4096   corrections, each run on a multiple of 4096
after the last run      setup material, up to the end of the file
======================  ===============================================================

All integers are little-endian. Every check value covers the header digest, so a block of another
pool never passes for this one's. Nothing is allocated by a length from the file: the file's real
size must equal the size its header and seal give.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from dataclasses import asdict, dataclass, field
from typing import Final

import msgspec
import rfc8785

from privml.errors import Corrupt

MAGIC: Final = b"PVMLPOOL"
VERSION: Final = 1
BLOCK: Final = 4096
HEADER_BYTES: Final = 4 * BLOCK
SLOT_OFFSETS: Final = (HEADER_BYTES, HEADER_BYTES + BLOCK)
SEAL_OFFSET: Final = HEADER_BYTES + 2 * BLOCK
SEEDS_OFFSET: Final = HEADER_BYTES + 3 * BLOCK
SEED_BYTES: Final = 32
ENTRY_BYTES: Final = 64
MAX_RUNS: Final = 1 << 20
MAX_CORRECTION_BYTES: Final = 1 << 40

_PREFIX = struct.Struct("<8sII32s")
_SLOT = struct.Struct("<QQQ")
_SEAL = struct.Struct("<Q32s")
_CLAIM_CHARS: Final = 1024


@dataclass(frozen=True)
class PoolHeader:
    """What a pool holds; the same ``pool_id`` and ``plan_digest`` in both parties' files.

    Attributes
    ----------
    pool_id
        32 hex digits drawn by the dealer.
    plan_digest
        64 hex digits: SHA-256 of the plan that the material was dealt for.
    rank
        0 server, 1 client.
    runs
        Number of inferences the pool serves, 1 to 2^20.
    correction_bytes
        Correction bytes per run; 0 for rank 0.
    setup
        Secret: 64 hex digits, the seed of the once-per-pool material, or "" for none (rank 1
        always). Not in the ``repr``.
    claim
        Security claim of the source, for people.
    """

    pool_id: str
    plan_digest: str
    rank: int
    runs: int
    correction_bytes: int
    setup: str = field(repr=False)
    claim: str

    def problems(self) -> list[str]:
        """Return every field that is out of range, as one line each; empty if all is well."""
        checks = {
            "pool_id must be 32 lower-case hex digits": _hex(self.pool_id, 32),
            "plan_digest must be 64 lower-case hex digits": _hex(self.plan_digest, 64),
            "rank must be 0 or 1": self.rank in (0, 1),
            f"runs must lie in 1 to {MAX_RUNS}": 1 <= self.runs <= MAX_RUNS,
            f"correction_bytes must lie in 0 to {MAX_CORRECTION_BYTES}, and be 0 for rank 0": (
                0 <= self.correction_bytes <= (MAX_CORRECTION_BYTES if self.rank else 0)
            ),
            "setup must be empty, or 64 lower-case hex digits for rank 0": (
                self.setup == "" or (self.rank == 0 and _hex(self.setup, 64))
            ),
            f"claim must be at most {_CLAIM_CHARS} printable characters": (
                len(self.claim) <= _CLAIM_CHARS and (self.claim == "" or self.claim.isprintable())
            ),
        }
        return [message for message, fine in checks.items() if not fine]


@dataclass(frozen=True)
class Slot:
    """One durable state of a pool: runs below ``cursor`` are spent, below ``destroyed`` erased.

    Sequence 0 is the dealer's; a higher one shows that the pool was opened before.
    """

    sequence: int
    cursor: int
    destroyed: int


@dataclass(frozen=True)
class Seal:
    """Length and SHA-256 digest of the setup material."""

    nbytes: int
    digest: bytes


@dataclass(frozen=True)
class Layout:
    """Offsets of a pool file, computed from its header alone."""

    runs: int
    correction_bytes: int

    @property
    def stride(self) -> int:
        """Bytes from one run's corrections to the next's."""
        return _up(self.correction_bytes)

    @property
    def corrections(self) -> int:
        """Offset of the corrections of run 0."""
        return SEEDS_OFFSET + _up(self.runs * ENTRY_BYTES)

    @property
    def setup(self) -> int:
        """Offset of the setup material."""
        return self.run(self.runs)

    def run(self, index: int) -> int:
        """Return the offset of the corrections of run ``index``."""
        return self.corrections + index * self.stride

    @staticmethod
    def entry(index: int) -> int:
        """Return the offset of the seed entry of run ``index``."""
        return SEEDS_OFFSET + index * ENTRY_BYTES


def encode_header(header: PoolHeader) -> bytes:
    """Return the header block, padded with zeros to its fixed size."""
    text = rfc8785.dumps(asdict(header))
    block = _PREFIX.pack(MAGIC, VERSION, len(text), _header_digest(text)) + text
    return block.ljust(HEADER_BYTES, b"\0")


def decode_header(block: bytes) -> tuple[PoolHeader, bytes]:
    """Return the header and its digest from the first bytes of a file.

    Raises
    ------
    Corrupt
        The bytes are not a header that :func:`encode_header` could have made.
    """
    if len(block) < HEADER_BYTES or block[: len(MAGIC)] != MAGIC:
        raise Corrupt("it is not a pool file, or it is cut short")
    _, version, length, digest = _PREFIX.unpack_from(block)
    if version != VERSION:
        raise Corrupt(f"its format is version {version}, this program reads version {VERSION}")
    if length > HEADER_BYTES - _PREFIX.size:
        raise Corrupt("its header is longer than any pool header")
    text, padding = block[_PREFIX.size :][:length], block[_PREFIX.size + length : HEADER_BYTES]
    if not hmac.compare_digest(digest, _header_digest(text)) or padding.strip(b"\0"):
        raise Corrupt("its header does not match its checksum")
    try:
        header = msgspec.json.decode(text, type=PoolHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt("its header is not a pool header") from error
    if problems := header.problems():
        raise Corrupt(f"its header has fields out of range: {'; '.join(problems)}")
    if rfc8785.dumps(asdict(header)) != text:
        raise Corrupt("its header is not in canonical form")
    return header, digest


def encode_slot(slot: Slot, header_digest: bytes) -> bytes:
    """Return the bytes of a cursor slot with its check value."""
    body = _SLOT.pack(slot.sequence, slot.cursor, slot.destroyed)
    return body + _check(b"slot", header_digest, body)


def decode_slot(block: bytes, header_digest: bytes, *, runs: int) -> Slot | None:
    """Return the slot, or ``None`` if the bytes are torn or damaged."""
    body, check = block[: _SLOT.size], block[_SLOT.size : _SLOT.size + 32]
    if not hmac.compare_digest(check, _check(b"slot", header_digest, body)):
        return None
    slot = Slot(*_SLOT.unpack(body))
    return slot if slot.destroyed <= slot.cursor <= runs else None


def encode_seal(seal: Seal, header_digest: bytes) -> bytes:
    """Return the bytes of the seal with its check value."""
    body = _SEAL.pack(seal.nbytes, seal.digest)
    return body + _check(b"seal", header_digest, body)


def decode_seal(block: bytes, header_digest: bytes) -> Seal:
    """Return the seal; raise ``Corrupt`` if it is damaged."""
    body, check = block[: _SEAL.size], block[_SEAL.size : _SEAL.size + 32]
    if not hmac.compare_digest(check, _check(b"seal", header_digest, body)):
        raise Corrupt("its seal does not match its checksum")
    return Seal(*_SEAL.unpack(body))


def encode_entry(seed: bytes, header_digest: bytes, index: int) -> bytes:
    """Return the seed table entry of run ``index``."""
    return seed + _check(b"seed", header_digest, index.to_bytes(8, "little"), seed)


def decode_entry(entry: bytes, header_digest: bytes, index: int) -> bytearray | None:
    """Return the seed in a buffer that can be wiped, ``None`` if it was spent.

    Raises
    ------
    Corrupt
        The entry is damaged.
    """
    if len(entry) == ENTRY_BYTES and not any(entry):
        return None
    seed = bytearray(entry[:SEED_BYTES])
    check = _check(b"seed", header_digest, index.to_bytes(8, "little"), seed)
    if not hmac.compare_digest(entry[SEED_BYTES:], check):
        raise Corrupt(f"the seed of run {index} does not match its checksum")
    return seed


def _header_digest(text: bytes) -> bytes:
    return hashlib.sha256(MAGIC + struct.pack("<II", VERSION, len(text)) + text).digest()


def _check(purpose: bytes, *parts: bytes | bytearray) -> bytes:
    """Return SHA-256 over a purpose label and fixed-size parts."""
    return hashlib.sha256(b"privml pool " + purpose + b"".join(parts)).digest()


def _hex(text: str, digits: int) -> bool:
    return re.fullmatch(f"[0-9a-f]{{{digits}}}", text) is not None


def _up(nbytes: int) -> int:
    """Round up to a multiple of the block size."""
    return -(-nbytes // BLOCK) * BLOCK
