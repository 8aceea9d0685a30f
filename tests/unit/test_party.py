"""Parties: fingerprints in one form, names fit for files, a topology that handshakes can bind."""

from __future__ import annotations

import dataclasses

import pytest

from privml.errors import ParameterError
from privml.party import (
    Corruption,
    Party,
    Role,
    Topology,
    check_name,
    is_pinned,
    parse_fingerprint,
)

ONE = parse_fingerprint("ab" * 32)
TWO = parse_fingerprint("cd" * 32)
SERVER = Party("alice", 0, Role.SERVER, ONE)
CLIENT = Party("bob", 1, Role.CLIENT, TWO)


@pytest.mark.parametrize(
    "text",
    ["ab" * 32, "AB" * 32, " " + "ab" * 32 + "\n", ":".join(["Ab"] * 32), "sha256:" + "ab" * 32],
)
def test_fingerprint_forms(text: str) -> None:
    assert parse_fingerprint(text) == ONE


@pytest.mark.parametrize("text", ["", "ab", "zz" * 32, "ab" * 33, "ab" * 31 + "a", "ab " * 32])
def test_not_a_fingerprint(text: str) -> None:
    with pytest.raises(ParameterError, match="64 hex digits"):
        parse_fingerprint(text)


def test_pins() -> None:
    assert is_pinned(ONE, [TWO, ONE])
    assert not is_pinned(ONE, [TWO])
    assert not is_pinned(ONE, [])


@pytest.mark.parametrize("name", ["a", "Alice-1", "x_y.z", "0" * 64])
def test_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "a b", "é", "x" * 65, "a\n"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ParameterError, match="name"):
        check_name(name)
    with pytest.raises(ParameterError):
        Party(name, 0, Role.SERVER)


def test_topology_binds_everything() -> None:
    base = Topology((SERVER, CLIENT))
    changed = [
        Topology((dataclasses.replace(SERVER, name="eve"), CLIENT)),
        Topology((dataclasses.replace(SERVER, fingerprint=None), CLIENT)),
        Topology((SERVER, dataclasses.replace(CLIENT, role=Role.SERVER))),
        Topology((SERVER, CLIENT), corruption=Corruption.MALICIOUS),
    ]
    assert base.binding()["party 0"] == f"alice server {ONE}"
    assert all(other.binding() != base.binding() for other in changed)


def test_topology_order_and_fingerprints() -> None:
    with pytest.raises(ParameterError, match="rank"):
        Party("x", 2, Role.SERVER)
    with pytest.raises(ParameterError, match="order of rank"):
        Topology((CLIENT, SERVER))
    with pytest.raises(ParameterError, match="its own"):
        Topology((SERVER, dataclasses.replace(CLIENT, fingerprint=ONE)))
