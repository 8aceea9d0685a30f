"""What client and server code asks of a program, whatever scheme it is under.

TFHE programs are :class:`~privml.protocols.fhe.bundle.ServerPart`; those under CKKS are
:class:`privml.protocols.he.program.CkksServer`. The connection, the store of keys, the board of
images and the computing process are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from privml.protocols.fhe.entry import Scores

if TYPE_CHECKING:
    from privml.protocols.fhe.launcher import Limits

Result_co = TypeVar("Result_co", bound=Scores, covariant=True)


@dataclass(frozen=True)
class Bounds:
    """Bytes that a message can have: more than ``least``, at most ``most``."""

    least: int
    most: int

    def hold(self, nbytes: int) -> bool:
        """Return whether a message can have that many bytes."""
        return self.least < nbytes <= self.most


@dataclass(frozen=True)
class Traffic:
    """Bytes of the evaluation keys, of one query and of one answer."""

    keys: Bounds
    query: Bounds
    answer: Bounds


class Computer(Protocol):
    """The process that computes for one program; see :class:`~.launcher.Launcher`."""

    isolated: bool

    def start(self) -> None:
        """Start it, if it does not run."""

    def run(self, query: bytes, *, owner: str, keys: Callable[[], bytes]) -> bytes:
        """Return the answer to one query by the keys of its owner."""

    def forget(self, owner: str) -> None:
        """Drop an owner's keys from its memory."""

    def interrupt(self) -> None:
        """End it from another thread."""

    def close(self) -> None:
        """End it."""


class Program(Protocol):
    """A program that a server serves."""

    @property
    def id(self) -> str:
        """Digest of its manifest."""

    @property
    def traffic(self) -> Traffic:
        """Sizes of its messages."""

    def public(self) -> bytes:
        """Return the client's part for the wire."""

    def computer(self, limits: Limits | None) -> Computer:
        """Return the process that computes, not yet started."""


class PublicPart(Protocol):
    """A client's part of a program."""

    @property
    def id(self) -> str:
        """Digest of its manifest."""

    @property
    def traffic(self) -> Traffic:
        """Sizes of its messages."""

    def check(self, units: Any) -> Any:  # noqa: ANN401 (arrays of the scheme)
        """Return the units, one per query, after checking that they may be encrypted."""


class KeyHolder(Protocol[Result_co]):
    """The side that holds the secret key."""

    def encrypt(self, units: Any) -> list[bytes]:  # noqa: ANN401 (arrays of the scheme)
        """Return one query per unit."""

    def decrypt(self, answers: Sequence[bytes]) -> Result_co:
        """Return the scores in the answers."""
