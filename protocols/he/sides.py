"""The client of a CKKS program: keys, queries of many images, answers; as ``fhe.sides`` for TFHE.

The server's side is :class:`privml.protocols.fhe.sides.FheServer` or the service, given a
:class:`~privml.protocols.he.program.CkksServer`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privml.errors import MalformedMessage, ProtocolError
from privml.protocols.fhe import client as remote
from privml.protocols.fhe.client import Address, Work
from privml.protocols.fhe.entry import Mode, Scores
from privml.protocols.fhe.frequency import Photo
from privml.protocols.fhe.key_ring import KeyRing
from privml.protocols.he.bundle import read_client
from privml.protocols.he.contexts import ClientContext
from privml.protocols.he.program import CkksPart

Floats = NDArray[np.float64]


class CkksClient:
    """Holds the secret key; everything it returns as bytes may be sent, but :meth:`save_keys`.

    Parameters
    ----------
    part
        The client's part of a program, from a folder or from the server.
    """

    def __init__(self, part: CkksPart) -> None:
        self.part = part
        self._context: ClientContext | None = None
        self._evaluation: bytes | None = None

    @classmethod
    def load(cls, folder: Path | str, *, trusted: Collection[str]) -> Self:
        """Read the client's bundle; errors as :func:`~.bundle.read_client`."""
        return cls(read_client(Path(folder), trusted=trusted))

    @classmethod
    def ask_for(cls, address: Address, program: str | None = None) -> Self:
        """Get the client's part from a server; ``program`` is the id that is expected.

        Raises
        ------
        MalformedMessage
            The part is not valid or not that of ``program``.
        """
        part = CkksPart.from_bytes(remote.ask_part(address, program))
        if program is not None and part.id != program:
            raise MalformedMessage("the server sent another program than was asked for")
        return cls(part)

    @property
    def program(self) -> str:
        """Id of the program."""
        return self.part.id

    def keygen(self) -> bytes:
        """Draw new keys from the operating system's entropy; return the evaluation keys."""
        self._context = ClientContext(self.part.spec)
        self._evaluation = self._context.evaluation_keys().to_bytes()
        return self._evaluation

    def save_keys(self, folder: Path | str) -> None:
        """Write the secret key and the evaluation keys into a new folder."""
        ring = KeyRing(self.program, self._present().secret_key(), self.evaluation_keys)
        ring.save(Path(folder))

    def load_keys(self, folder: Path | str) -> None:
        """Use the keys of a folder; errors as :meth:`KeyRing.load` and :meth:`KeyRing.use_in`."""
        ring = KeyRing.load(Path(folder))
        ring.use_in(self, program=self.program)
        self._evaluation = ring.evaluation

    def use_secret_keys(self, data: bytes) -> None:
        """Take a secret key of this program; raises :class:`MalformedMessage` if it is none."""
        self._context = ClientContext(self.part.spec, data)

    @property
    def evaluation_keys(self) -> bytes:
        """Keys for the server; raises :class:`ProtocolError` before there are any."""
        if self._evaluation is None:
            raise ProtocolError("the client has no keys yet; call keygen() or load_keys() first")
        return self._evaluation

    def prepare(self, images: Sequence[Photo] | NDArray[np.floating]) -> Floats:
        """Return real numbers (n, features) of images; see :meth:`CkksPart.prepare`."""
        return self.part.prepare(images)

    def encrypt(self, images: Sequence[Photo] | NDArray[np.floating]) -> list[bytes]:
        """Return one query per image; a query could hold ``part.manifest.images`` of them."""
        context = self._present()
        return [query for row in self.prepare(images) for query in context.encrypt(row[None])]

    def decrypt(self, answers: Sequence[bytes]) -> Scores:
        """Return the scores in the answers to :meth:`encrypt`, one image each.

        They go to nobody else, not even back to the server.
        """
        return _Batches(self._present(), [1] * len(answers)).decrypt(answers)

    def classify(self, address: Address, images: Sequence[Photo] | NDArray[np.floating]) -> Scores:
        """Have a remote server classify images; see :meth:`FheClient.classify`."""
        return self.work(address, self.prepare(images)).run()

    def work(self, address: Address, x: Floats, *, job: str | None = None) -> Work[Scores]:
        """Return prepared images for a remote server, as few queries as they fit in."""
        batches = self.part.batches(x)
        holder = _Batches(self._present(), [len(batch) for batch in batches])
        return Work(
            address, self.part, holder, self.evaluation_keys, batches,
            job=remote.new_job() if job is None else job,
        )  # fmt: skip

    def _present(self) -> ClientContext:
        if self._context is None:
            raise ProtocolError("the client has no keys yet; call keygen() or load_keys() first")
        return self._context


class _Batches:
    """Encrypts batches, and knows how many images each answer is about."""

    def __init__(self, context: ClientContext, counts: Sequence[int]) -> None:
        self._context, self._counts = context, list(counts)

    def encrypt(self, units: Sequence[Floats]) -> list[bytes]:
        return [query for batch in units for query in self._context.encrypt(batch)]

    def decrypt(self, answers: Sequence[bytes]) -> Scores:
        rows = [
            self._context.decrypt([answer], images=count)
            for answer, count in zip(answers, self._counts, strict=True)
        ]
        return Scores(scores=np.concatenate(rows), mode=Mode.EXECUTE)
