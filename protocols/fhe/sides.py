"""The two sides for programmers: a client with its front end, a server with its child process.

Both in one program::

    client = FheClient.load("photos/client", trusted=[operator])
    keys = client.keygen()
    queries = client.encrypt([photo])
    with FheServer.load("photos/server", trusted=[operator]) as server:
        answers = [server.run(query, keys) for query in queries]
    classes = client.decrypt(answers).classes
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from privml.errors import ProtocolError
from privml.protocols.fhe import client as remote
from privml.protocols.fhe.bundle import ClientPart, read_client, read_server
from privml.protocols.fhe.client import Address, Work
from privml.protocols.fhe.entry import Answer
from privml.protocols.fhe.frequency import Photo
from privml.protocols.fhe.inputs import prepare
from privml.protocols.fhe.key_ring import KeyRing
from privml.protocols.fhe.launcher import Limits
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.parties import Client
from privml.protocols.fhe.programs import Program


class FheClient:
    """Holds the secret key; everything it returns as bytes may be sent, but :meth:`save_keys`.

    Parameters
    ----------
    part
        The client's part of a program, from a folder or from the server.

    Raises
    ------
    InsecureParameters
        The program's keys would be weaker than 128 bits.
    UnsupportedError
        concrete-python is missing.
    """

    def __init__(self, part: ClientPart) -> None:
        self.part = part
        self._client = Client(part.spec)
        self._evaluation: bytes | None = None

    @classmethod
    def load(cls, folder: Path | str, *, trusted: Collection[str]) -> Self:
        """Read the client's bundle; errors as :func:`~.bundle.read_client`."""
        return cls(read_client(Path(folder), trusted=trusted))

    @classmethod
    def ask_for(cls, address: Address, program: str | None = None) -> Self:
        """Get the client's part from a server; see :func:`~.client.describe`."""
        return cls(remote.describe(address, program))

    @property
    def program(self) -> str:
        """Id of the program."""
        return self.part.manifest.id

    def keygen(self) -> bytes:
        """Draw new keys from the operating system's entropy; return the evaluation keys."""
        self._evaluation = self._client.keygen()
        return self._evaluation

    def save_keys(self, folder: Path | str) -> None:
        """Write the secret keys and the evaluation keys into a new folder."""
        KeyRing(self.program, self._client.secret_keys(), self._keys()).save(Path(folder))

    def load_keys(self, folder: Path | str) -> None:
        """Use the keys of a folder; errors as :meth:`KeyRing.load` and :meth:`KeyRing.use_in`."""
        ring = KeyRing.load(Path(folder))
        ring.use_in(self._client, program=self.program)
        self._evaluation = ring.evaluation

    def prepare(self, images: Sequence[Photo]) -> Ints:
        """Return the integers of images; see :func:`~.inputs.prepare`."""
        return prepare(self.part, images)

    def encrypt(self, images: Sequence[Photo]) -> list[bytes]:
        """Return one query per image."""
        return self._client.encrypt(self.prepare(images))

    def decrypt(self, answers: Sequence[bytes]) -> Answer:
        """Return the scores; they go to nobody else, not even back to the server."""
        return self._client.decrypt(answers)

    def classify(
        self,
        address: Address,
        images: Sequence[Photo],
        *,
        job: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Answer:
        """Have a remote server classify images; connections that drop are opened again.

        Raises
        ------
        Refused, PeerAborted, DeadlineExceeded, UntrustedArtifact, MalformedMessage
            See :meth:`Work.run`.
        """
        work = self.work(address, self.prepare(images), job=job)
        if progress is not None:
            work.progress = progress
        return work.run()

    def work(self, address: Address, images: Ints, *, job: str | None = None) -> Work[Answer]:
        """Return a batch of prepared images for a remote server, not yet begun."""
        return Work(
            address, self.part, self._client, self._keys(), images,
            job=remote.new_job() if job is None else job,
        )  # fmt: skip

    @property
    def evaluation_keys(self) -> bytes:
        """Keys for the server; raises :class:`ProtocolError` before there are any."""
        return self._keys()

    def _keys(self) -> bytes:
        if self._evaluation is None:
            raise ProtocolError("the client has no keys yet; call keygen() or load_keys() first")
        return self._evaluation


class FheServer:
    """Computes in a child process, for one caller; close it, or use ``with``.

    For clients over a network see :class:`~.service.Service`.
    """

    def __init__(self, part: Program, *, limits: Limits | None = None) -> None:
        self.part = part
        self._launcher = part.computer(limits)

    @classmethod
    def load(
        cls, folder: Path | str, *, trusted: Collection[str], limits: Limits | None = None
    ) -> Self:
        """Read the server's bundle; errors as :func:`~.bundle.read_server`."""
        return cls(read_server(Path(folder), trusted=trusted), limits=limits)

    def run(self, query: bytes, evaluation_keys: bytes) -> bytes:
        """Return the encrypted answer; errors as :meth:`Launcher.run`."""
        owner = hashlib.sha256(evaluation_keys).hexdigest()
        return self._launcher.run(query, owner=owner, keys=lambda: evaluation_keys)

    def close(self) -> None:
        """End the child process."""
        self._launcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
