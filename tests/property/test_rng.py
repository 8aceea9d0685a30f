"""Keystreams against published vectors and the twin; separation and refusals of both seed types."""

from __future__ import annotations

import copy
import hashlib
import hmac
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml import _native, rng
from privml.errors import InsecureRandomness, ParameterError, SecurityError
from privml.rng import Csprng, ScienceSeed, aes_ctr, ref_aes_ctr

HAS = _native.features()
LEVELS = [level for level in range(3) if level == 0 or HAS & (1 << (level - 1))]
KEY = bytes(range(32))

# NIST SP 800-38A, F.5.1 (CTR-AES128.Encrypt): plaintext and ciphertext of four blocks.
NIST_KEY = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
NIST_NONCE, NIST_BLOCK = 0xF0F1F2F3F4F5F6F7, 0xF8F9FAFBFCFDFEFF
NIST_PLAIN = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
NIST_CIPHER = bytes.fromhex(
    "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
    "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
)


@pytest.fixture(params=LEVELS, ids=[_native.ISAS[level] for level in LEVELS])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the test on one instruction set (128, 256 or 512-bit AES)."""
    level = int(request.param)
    monkeypatch.setattr(_native, "isa_level", lambda: level)
    return level


@pytest.mark.parametrize("stream", [aes_ctr, ref_aes_ctr])
def test_nist_vector(stream: Any, isa: int) -> None:
    got = stream(NIST_KEY, NIST_NONCE, 64, block0=NIST_BLOCK).tobytes()
    assert bytes(x ^ y for x, y in zip(got, NIST_PLAIN, strict=True)) == NIST_CIPHER


def test_fips_197_key_schedule(isa: int) -> None:
    """FIPS 197, appendix C.1: one block whose counter is the published plaintext."""
    got = aes_ctr(bytes(range(16)), 0x0011223344556677, 16, block0=0x8899AABBCCDDEEFF)
    assert got.tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


@pytest.mark.parametrize("block0", [0, 1, 255, 2**32 - 3, 2**63 - 2, 2**64 - 80])
def test_every_length_equals_the_twin(block0: int, isa: int) -> None:
    for nbytes in (*range(70), *range(120, 140), 255, 256, 257, 511, 512, 513, 1023, 1024, 1280):
        nonce = (nbytes * 0x9E3779B97F4A7C15 + block0) % 2**64
        key = hashlib.sha256(str(nbytes).encode()).digest()[:16]
        got = aes_ctr(key, nonce, nbytes, block0=block0)
        assert got.dtype == np.uint8
        assert got.flags.writeable
        np.testing.assert_array_equal(got, ref_aes_ctr(key, nonce, nbytes, block0=block0))


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1), st.data())
def test_random_access(key: bytes, nonce: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 2**64 - 200))
    skip, nbytes = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 1500))
    whole = aes_ctr(key, nonce, 16 * skip + nbytes, block0=start)
    np.testing.assert_array_equal(
        aes_ctr(key, nonce, nbytes, block0=start + skip), whole[16 * skip :]
    )
    np.testing.assert_array_equal(whole, ref_aes_ctr(key, nonce, whole.size, block0=start))


def test_nothing_is_written_outside_the_result(isa: int) -> None:
    library = _native.load()
    if library is None or not HAS & _native.AESNI:
        pytest.skip("no native kernel")
    for nbytes in (0, 1, 15, 16, 100, 127, 128, 300, 511, 513):
        frame = np.full(nbytes + 128, 77, dtype=np.uint8)
        inner = frame[64:-64]
        assert library.privml_aes128_ctr(isa, bytes(16), 5, 6, _native.address(inner), nbytes) == 0
        np.testing.assert_array_equal(inner, ref_aes_ctr(bytes(16), 5, nbytes, block0=6))
        inner[:] = 77
        assert (frame == 77).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"key": bytes(15)}, "16 bytes"),
        ({"key": bytes(32)}, "16 bytes"),
        ({"nonce": -1}, "nonce"),
        ({"nonce": 2**64}, "nonce"),
        ({"nbytes": -1}, "blocks"),
        ({"block0": -1}, "blocks"),
        ({"nbytes": 17, "block0": 2**64 - 1}, "blocks"),
    ],
)
def test_bad_stream_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        aes_ctr(**{"key": bytes(16), "nonce": 0, "nbytes": 16, "block0": 0, **arguments})


def test_subkeys_are_hkdf_expand_of_labels() -> None:
    """Recomputed with the standard library only (RFC 5869, expand step, one round)."""
    labels = b"\0\0\0\2s\0\0\0\4pooli\0\0\0\00212"
    child = hmac.new(KEY, b"privml child" + labels + b"\1", hashlib.sha256).digest()
    stream = hmac.new(child, b"privml stream\1", hashlib.sha256).digest()[:16]
    got = Csprng(KEY).child("pool", 12).words(5, 9)
    assert got.tobytes() == ref_aes_ctr(stream, 9, 40).tobytes()


def test_words_are_functions_of_key_and_nonce() -> None:
    first, second = Csprng(KEY), Csprng(KEY)
    a = first.words((3, 5), 7)
    first.token(8)
    np.testing.assert_array_equal(a, second.words((3, 5), 7))
    np.testing.assert_array_equal(a.ravel(), second.words(15, 7))
    np.testing.assert_array_equal(a.ravel()[:4], second.words(4, 7))
    assert a.dtype == np.uint64
    assert a.flags.c_contiguous
    assert a.flags.writeable


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_width_reads_the_same_stream(dtype: Any) -> None:
    words = Csprng(KEY).words(64, 3, dtype)
    assert words.dtype == dtype
    assert words.tobytes() == Csprng(KEY).words(64 * words.itemsize, 3, np.uint8).tobytes()
    assert Csprng(KEY).words((0, 4), 3, dtype).shape == (0, 4)
    assert Csprng(KEY).words((), 3, dtype).shape == ()


@given(
    st.lists(
        st.lists(st.text(max_size=4) | st.integers(), min_size=1, max_size=3),
        min_size=2,
        max_size=6,
    )
)
def test_different_labels_give_different_streams(sequences: list[list[str | int]]) -> None:
    distinct = {tuple((type(x).__name__, x) for x in labels): labels for labels in sequences}
    words = {Csprng(KEY).child(*labels).words(4, 0).tobytes() for labels in distinct.values()}
    seeds = {ScienceSeed(1).child(*labels) for labels in distinct.values()}
    assert len(words) == len(seeds) == len(distinct)


def test_streams_differ_by_key_nonce_child_and_purpose() -> None:
    g, other = Csprng(KEY), Csprng(KEY[::-1])
    streams = [
        g.words(4, 0), g.words(4, 1), other.words(4, 0), g.child("a").words(4, 0),
        g.child("ab").words(4, 0), g.child("a", "b").words(4, 0), g.child("1").words(4, 0),
        g.child(1).words(4, 0), g.child("a").child("b").words(4, 0),
        np.frombuffer(g.token(32), dtype=np.uint64),
    ]  # fmt: skip
    assert len({s.tobytes() for s in streams}) == len(streams)


def test_fresh_generators_and_tokens_never_repeat() -> None:
    keys = {Csprng.fresh().words(2, 0).tobytes() for _ in range(50)}
    g = Csprng.fresh()
    tokens = {g.token(16) for _ in range(50)}
    assert len(keys) == len(tokens) == 50
    assert len(g.token(0)) == 0
    assert len(g.token(33)) == 33


def test_every_bit_of_the_ring_is_balanced() -> None:
    n = 1 << 16
    bits = np.unpackbits(Csprng(KEY).words(n, 0).view(np.uint8)).reshape(n, 64)
    z = (bits.sum(axis=0, dtype=np.int64) - n / 2) / np.sqrt(n / 4)
    assert np.abs(z).max() < 6


def test_the_key_is_never_shown_or_copied() -> None:
    g = Csprng(KEY)
    for text in (repr(g), str(g), f"{[g]}"):
        assert "secret" in text
        assert KEY.hex()[:8] not in text
    assert not hasattr(g, "__dict__")
    for attempt in (copy.copy, copy.deepcopy, lambda x: x.__reduce_ex__(4)):
        with pytest.raises(SecurityError, match="never serialised"):
            attempt(g)


@pytest.mark.parametrize("key", [ScienceSeed(5), 5, "x" * 32, bytearray(32), None])
def test_only_secret_bytes_key_a_generator(key: Any) -> None:
    with pytest.raises(InsecureRandomness, match="secret bytes"):
        Csprng(key)


def test_bad_generator_arguments() -> None:
    g = Csprng(KEY)
    with pytest.raises(ParameterError, match="32 bytes"):
        Csprng(bytes(16))
    for bad in (np.int64, np.float64, np.bool_):
        with pytest.raises(ParameterError, match="unsigned"):
            g.words(4, 0, bad)
    for shape in (-1, (2, -3)):
        with pytest.raises(ParameterError, match="negative"):
            g.words(shape, 0)
    with pytest.raises(ParameterError, match="nonce"):
        g.words(4, 2**64)
    with pytest.raises(ParameterError, match="label"):
        g.child()


FORK = """
import os
from privml.errors import InsecureRandomness
from privml.rng import Csprng
g = Csprng(bytes(32))
pid = os.fork()
refused = 0
for use in (lambda: g.words(1, 0), lambda: g.token(1), lambda: g.child("a")):
    try:
        use()
    except InsecureRandomness:
        refused += 1
if pid == 0:
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), refused)
"""


def test_a_forked_child_is_refused() -> None:
    root = str(Path(rng.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-c", FORK],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.stdout.split() == ["3", "0"], result.stderr


def test_science_seeds_reproduce_and_stay_apart() -> None:
    seed = ScienceSeed(2**128 - 1)
    np.testing.assert_array_equal(seed.generator().random(4), seed.generator().random(4))
    assert seed.child("fold", 1) == seed.child("fold", 1)
    assert seed.child("fold", 1) != seed.child("fold", 2)
    assert seed.child("fold", 1) != ScienceSeed(0).child("fold", 1)
    assert not isinstance(seed, Csprng)


@pytest.mark.parametrize("value", [-1, 2**128])
def test_science_seeds_out_of_range(value: int) -> None:
    with pytest.raises(ParameterError, match="science seed"):
        ScienceSeed(value)


def test_science_seed_golden_value() -> None:
    """A change here would silently change every experiment."""
    assert ScienceSeed(7).child("shuffle", 3).value == 0xB48AE680D21ABF288653DBE9FE159A25
