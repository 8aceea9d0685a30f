"""Parties, their roles, and the fingerprints by which they know each other."""

from __future__ import annotations

import enum
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass

from privml._typing import Fingerprint
from privml.errors import ParameterError

_HEX64 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Role(enum.Enum):
    """What a party brings: the model, the input, or correlated randomness."""

    SERVER = "server"
    CLIENT = "client"
    DEALER = "dealer"


class Corruption(enum.Enum):
    """How a corrupted party may behave."""

    SEMI_HONEST = "semi-honest"
    MALICIOUS = "malicious"


def parse_fingerprint(text: str) -> Fingerprint:
    """Return `text` in normal form: 64 lower-case hex digits.

    Parameters
    ----------
    text
        SHA-256 of a DER certificate in hex; colons, spaces at the ends, upper case and a leading
        ``sha256:`` are accepted.

    Raises
    ------
    ParameterError
        Not a SHA-256 in hex.
    """
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not _HEX64.fullmatch(digits):
        raise ParameterError(
            "a fingerprint is the SHA-256 of a certificate, 64 hex digits; copy it from the "
            "output of the party that owns the certificate"
        )
    return Fingerprint(digits)


def is_pinned(fingerprint: Fingerprint, pins: Iterable[Fingerprint]) -> bool:
    """Return whether `fingerprint` is one of `pins`; each comparison takes constant time."""
    hits = [hmac.compare_digest(fingerprint, pin) for pin in pins]
    return any(hits)


def check_name(name: str) -> str:
    """Return `name` if it is fit for a file name and a log line.

    Raises
    ------
    ParameterError
        Not 1 to 64 letters, digits, ``_ . -``, or not led by a letter or digit.
    """
    if not _NAME.fullmatch(name):
        raise ParameterError(
            f"the party name {name!r} is not usable: take 1 to 64 letters, digits or _ . - "
            "with a letter or digit first"
        )
    return name


@dataclass(frozen=True, slots=True)
class Party:
    """One participant.

    Attributes
    ----------
    name
        For people and logs.
    rank
        0 server, 1 client.
    role
        What it brings.
    fingerprint
        SHA-256 of its TLS certificate, or None in one process.
    """

    name: str
    rank: int
    role: Role
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.rank not in (0, 1):
            raise ParameterError(f"rank must be 0 (server) or 1 (client), got {self.rank}")


@dataclass(frozen=True, slots=True)
class Topology:
    """Who takes part, in order of rank, and what is assumed of a corrupted party.

    Attributes
    ----------
    parties
        Two parties, ranks 0 and 1.
    corruption
        Assumed behaviour of the one corrupted party.
    """

    parties: tuple[Party, Party]
    corruption: Corruption = Corruption.SEMI_HONEST

    def __post_init__(self) -> None:
        if [p.rank for p in self.parties] != [0, 1]:
            raise ParameterError("a topology lists two parties in order of rank: 0, then 1")
        first, second = (p.fingerprint for p in self.parties)
        if first is not None and first == second:
            raise ParameterError("both parties have the same certificate; each needs its own")

    def binding(self) -> dict[str, str]:
        """Return the fields that a handshake binds: names, roles, fingerprints, assumption."""
        fields = {"corruption": self.corruption.value}
        for party in self.parties:
            print_ = party.fingerprint or "none"
            fields[f"party {party.rank}"] = f"{party.name} {party.role.value} {print_}"
        return fields
