"""Foreign and damaged pool files are refused with one clear error."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
from pathlib import Path

import pytest

from privml.errors import Corrupt, StorageError
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.correlations.pool import Pool, UsedLog
from privml.testing.pools import CLIENT, PLAN, SETUP, seed_of, write_pool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "client.pool")


@pytest.fixture
def used(tmp_path: Path) -> UsedLog:
    return UsedLog(tmp_path / "state" / "used")


def refused(path: Path, tmp_path: Path, match: str, kind: type = Corrupt) -> None:
    with pytest.raises(kind, match=match) as caught:
        Pool.open(path, plan_digest=PLAN, used=UsedLog(tmp_path / "u"))
    assert str(path) in str(caught.value)
    assert not (tmp_path / "u").exists()


def test_missing(tmp_path: Path) -> None:
    refused(tmp_path / "none", tmp_path, "No such file", StorageError)


def test_directory(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    refused(tmp_path / "d", tmp_path, "is a directory")


def test_symbolic_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    refused(tmp_path / "link", tmp_path, "symbolic link", StorageError)


def test_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", tmp_path, "not a regular file")


def test_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("s")
        refused(tmp_path / "s", tmp_path, "cannot use", StorageError)


def test_unreadable(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", denied)
    refused(path, tmp_path, "Permission denied", StorageError)


def test_empty_and_foreign(tmp_path: Path) -> None:
    for content in (b"", b"PVMLPOOL", b"x" * 100_000, b"PK\x03\x04" + bytes(50_000)):
        (tmp_path / "f").write_bytes(content)
        refused(tmp_path / "f", tmp_path, "not a pool file")


def test_truncated_at_any_block(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    lengths = {*range(0, len(content), 2048), len(content) - 1, layout.SEAL_OFFSET + 71}
    for length in lengths:
        (tmp_path / "cut").write_bytes(content[:length])
        refused(tmp_path / "cut", tmp_path, "deal a new one")
    (tmp_path / "cut").write_bytes(content + b"\0")
    refused(tmp_path / "cut", tmp_path, "its header gives")


def test_every_header_bit() -> None:
    block = bytearray(layout.encode_header(CLIENT))
    for bit in range(8 * len(block)):
        block[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            layout.decode_header(bytes(block))
        block[bit // 8] ^= 1 << bit % 8
    assert layout.decode_header(bytes(block))[0] == CLIENT


@pytest.mark.parametrize("bit", range(0, 8 * 72, 5))
def test_seal_bits(path: Path, tmp_path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[layout.SEAL_OFFSET + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    refused(path, tmp_path, "seal does not match")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 10_000,
        b'{"runs":1e999}',
        layout.rfc8785.dumps({**dataclasses.asdict(CLIENT), "extra": 1}),
        layout.rfc8785.dumps({**dataclasses.asdict(CLIENT), "runs": True}),
        layout.rfc8785.dumps({**dataclasses.asdict(CLIENT), "runs": 1 << 50}),
        layout.rfc8785.dumps({**dataclasses.asdict(CLIENT), "correction_bytes": -1}),
        layout.rfc8785.dumps({**dataclasses.asdict(CLIENT), "pool_id": "../../etc"}),
        layout.rfc8785.dumps(dataclasses.asdict(CLIENT)).replace(b":5", b": 5"),
    ],
)
def test_headers_with_a_right_checksum(text: bytes) -> None:
    digest = layout._header_digest(text)
    prefix = layout._PREFIX.pack(layout.MAGIC, layout.VERSION, len(text), digest)
    with pytest.raises(Corrupt, match="its header"):
        layout.decode_header((prefix + text).ljust(layout.HEADER_BYTES, b"\0"))


@pytest.mark.parametrize("length", [16384 - 47, 1 << 31, (1 << 32) - 1])
def test_absurd_header_length(length: int) -> None:
    prefix = layout._PREFIX.pack(layout.MAGIC, layout.VERSION, length, bytes(32))
    with pytest.raises(Corrupt, match="longer than any"):
        layout.decode_header(prefix.ljust(layout.HEADER_BYTES, b"\0"))


def test_other_version() -> None:
    prefix = layout._PREFIX.pack(layout.MAGIC, 2, 0, bytes(32))
    with pytest.raises(Corrupt, match="version 2, this program reads version 1"):
        layout.decode_header(prefix.ljust(layout.HEADER_BYTES, b"\0"))


def test_a_pool_that_claims_more_than_it_holds(path: Path, tmp_path: Path) -> None:
    block = layout.encode_header(dataclasses.replace(CLIENT, runs=1 << 20))
    digest = layout.decode_header(block)[1]
    seal = layout.encode_seal(layout.Seal(1 << 62, bytes(32)), digest)
    content = bytearray(path.read_bytes())
    content[: len(block)] = block
    content[layout.SEAL_OFFSET : layout.SEAL_OFFSET + len(seal)] = seal
    path.write_bytes(content)
    refused(path, tmp_path, "its header gives")


def test_one_damaged_slot_is_survived_two_are_not(path: Path, tmp_path: Path) -> None:
    used = UsedLog(tmp_path / "used")
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        pool.claim(0)
    for offset in layout.SLOT_OFFSETS:
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(offset + 8)
            file.write(b"\xff")
        with Pool.open(path, plan_digest=PLAN, used=used) as pool:
            assert pool.cursor == 1
        path.write_bytes(whole)
    with path.open("r+b") as file:
        for offset in layout.SLOT_OFFSETS:
            file.seek(offset)
            file.write(b"\xff" * 8)
    refused(path, tmp_path, "both of its cursor slots are damaged")


def test_slots_of_other_pools_do_not_count(path: Path, tmp_path: Path) -> None:
    other = layout.decode_header(layout.encode_header(dataclasses.replace(CLIENT, runs=6)))[1]
    mine = layout.decode_header(layout.encode_header(CLIENT))[1]
    slot = layout.Slot(9, 4, 4)
    assert layout.decode_slot(layout.encode_slot(slot, mine), mine, runs=5) == slot
    assert layout.decode_slot(layout.encode_slot(slot, other), mine, runs=5) is None
    assert layout.decode_slot(layout.encode_slot(slot, mine), mine, runs=3) is None


def test_a_damaged_seed_costs_one_run(path: Path, tmp_path: Path, used: UsedLog) -> None:
    with path.open("r+b") as file:
        file.seek(layout.Layout.entry(1))
        file.write(b"\xff")
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        assert pool.claim(0).seed == seed_of(0)
        with pytest.raises(Corrupt, match="seed of run 1"):
            pool.claim(1)
        assert pool.claim(2).seed == seed_of(2)


def test_damaged_or_unexpected_setup(path: Path, used: UsedLog) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x5a")
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        with pytest.raises(Corrupt, match="is damaged"):
            pool.read_setup(expect=len(SETUP))
        with pytest.raises(Corrupt, match="the plan needs 7"):
            pool.read_setup(expect=7)


def test_cut_short_while_open(path: Path, used: UsedLog) -> None:
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        run = pool.claim(0)
        os.truncate(path, layout.Layout(5, CLIENT.correction_bytes).run(0) + 100)
        with pytest.raises(Corrupt, match="cut short while in use"):
            run.read(101)
