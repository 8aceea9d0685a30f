"""Transcript: equal exactly if both parties saw the same bytes in the same direction."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privml.transcript import PIECE_BYTES, SMALL_BYTES, PayloadHash, Transcript

KEY = bytes(range(16))
SIZES = [SMALL_BYTES + 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5]


def keyed(key: bytes = KEY) -> Transcript:
    transcript = Transcript()
    transcript.set_key(key)
    return transcript


def digest_of(
    payload: bytes, *, arrivals: Sequence[int] = (), sender: int = 0, key: bytes = KEY
) -> bytes:
    """Return the digest after one payload that arrived up to each of `arrivals`, then whole."""
    transcript = keyed(key)
    feed = PayloadHash(transcript, sender, payload=memoryview(payload))
    for arrived in (*arrivals, len(payload), len(payload)):
        feed.advance(arrived)
    return transcript.digest()


def test_transcript_is_independent_of_how_the_bytes_were_cut() -> None:
    whole, pieces = Transcript(), Transcript()
    whole.update(0, b"abcdef")
    whole.update(1, b"xyz")
    for sender, data in [(1, b"x"), (0, b"abc"), (1, b"yz"), (0, b""), (0, b"def")]:
        pieces.update(sender, data)
    assert whole.digest() == pieces.digest()
    assert whole.matches(pieces.digest())


def test_transcript_tells_directions_and_bytes_apart() -> None:
    digests = set()
    for pairs in [[], [(0, b"a")], [(1, b"a")], [(0, b"b")], [(0, b"a"), (1, b"a")]]:
        transcript = Transcript()
        for sender, data in pairs:
            transcript.update(sender, data)
        digests.add(transcript.digest())
    assert len(digests) == 5


def test_transcript_golden() -> None:
    transcript = Transcript()
    transcript.update(0, b"server")
    transcript.update(1, b"client")
    label = b"privml transcript v1"
    first = hashlib.sha256(label + b" 0 to 1server").digest()
    second = hashlib.sha256(label + b" 1 to 0client").digest()
    assert transcript.digest() == hashlib.sha256(label + first + second).digest()
    assert not transcript.matches(bytes(32))
    assert not transcript.matches(b"short")


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES, *SIZES])
def test_payloads_are_independent_of_how_they_arrive(size: int, rng: np.random.Generator) -> None:
    payload = rng.bytes(size)
    cuts = sorted(int(n) for n in rng.integers(0, size + 1, size=20))
    assert digest_of(payload) == digest_of(payload, arrivals=cuts)
    assert digest_of(payload) == digest_of(payload, arrivals=range(0, size, 30_000))


def test_small_payload_enters_as_it_is() -> None:
    payload = bytes(SMALL_BYTES)
    transcript = keyed()
    transcript.update(0, payload)
    assert transcript.digest() == digest_of(payload)


def test_large_payload_golden(rng: np.random.Generator) -> None:
    payload = rng.bytes(PIECE_BYTES + 1000)
    gmac = AESGCM(KEY)
    tags = [
        gmac.encrypt(bytes([1, 0, 0, 0]) + number.to_bytes(8, "little"), b"", piece)
        for number, piece in ((1, payload[:PIECE_BYTES]), (2, payload[PIECE_BYTES:]))
    ]
    transcript = keyed()
    for tag in tags:
        transcript.update(1, tag)
    assert transcript.digest() == digest_of(payload, sender=1)


@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_change_in_a_large_payload(size: int, rng: np.random.Generator) -> None:
    payload = rng.bytes(size)
    seen = {digest_of(payload), digest_of(payload, sender=1), digest_of(payload, key=bytes(16))}
    seen |= {digest_of(payload + b"\0"), digest_of(payload[::-1])}
    for bit in (0, 8 * size - 1, *rng.integers(0, 8 * size, size=20)):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << int(bit % 8)
        seen.add(digest_of(bytes(changed)))
    assert len(seen) >= 25


def test_swapped_pieces() -> None:
    one, two = bytes(PIECE_BYTES), bytes([1]) * PIECE_BYTES
    assert digest_of(one + two) != digest_of(two + one)


def test_what_precedes_the_key_enters_as_it_is(rng: np.random.Generator) -> None:
    hello = rng.bytes(16 * SMALL_BYTES)
    transcript, plain = Transcript(), Transcript()
    PayloadHash(transcript, 0, payload=memoryview(hello)).advance(len(hello))
    plain.update(0, hello)
    assert transcript.digest() == plain.digest()
    assert not transcript.keyed
    with pytest.raises(AssertionError, match="without the session's key"):
        transcript.update_piece(0, hello)


def test_digest_outlives_the_key() -> None:
    transcript = keyed()
    PayloadHash(transcript, 0, payload=memoryview(bytes(PIECE_BYTES))).advance(PIECE_BYTES)
    before = transcript.digest()
    transcript.forget_key()
    assert transcript.digest() == before
