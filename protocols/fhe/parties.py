"""Client and server of an encrypted classification, apart: bytes go between them, nothing else.

The client holds the secret key and never sees weights. The server holds the program and evaluation
keys; its types have no field and no decoder for a secret key, and serialised keys that are longer
than evaluation keys are refused. Both check sizes before they hand bytes to the native decoder,
which on truncated input prints without end and may abort: put a server that strangers reach into a
child process.

Keys are drawn by concrete-python from the operating system's entropy. A decrypted answer must not
go to anybody else, not even back to the server: wrong decryptions can leak key information.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Self

import numpy as np

from privml.errors import MalformedMessage, ParameterError, ProtocolError, UntrustedArtifact
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.entry import Answer, ImageSpec, Mode
from privml.protocols.fhe.nodes import Floats, Ints
from privml.protocols.fhe.program_info import ENVELOPE_BYTES, ProgramInfo
from privml.protocols.fhe.signals import own_signals
from privml.storage import fs
from privml.storage.publish import atomic_write

PROGRAM_FILE: Final = "program_info.concrete.params.json"
LIBRARY_FILE: Final = "sharedlib.so"


@dataclass(frozen=True, eq=False)
class ClientSpec:
    """All that a client needs to know of a program; no weights.

    Attributes
    ----------
    info
        Parameters of the compiled program.
    image
        What the circuit takes.
    low
        Subtracted from the output integers inside the circuit.
    scale, offset
        Scores are ``scale * integer + offset``, one per class, float64.
    """

    info: ProgramInfo
    image: ImageSpec
    low: int
    scale: Floats
    offset: Floats

    def __post_init__(self) -> None:
        classes = self.info.output_shape
        if self.info.input_shape != (1, *self.image.shape) or classes != (1, len(self.scale)):
            raise ParameterError("the program takes or returns other shapes than the specification")
        if self.scale.shape != self.offset.shape:
            raise ParameterError("scale and offset must have the same length")


@dataclass(frozen=True, eq=False)
class Artefact:
    """The server's compiled program: file names and contents. It is native code."""

    files: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """SHA-256 of names and contents, in hexadecimal."""
        total = hashlib.sha256()
        for name in sorted(self.files):
            total.update(hashlib.sha256(name.encode()).digest())
            total.update(hashlib.sha256(self.files[name]).digest())
        return total.hexdigest()


class Client:
    """The side that holds the secret key.

    Raises
    ------
    InsecureParameters
        The program's keys would be weaker than 128 bits.
    UnsupportedError
        concrete-python is missing.
    """

    def __init__(self, spec: ClientSpec) -> None:
        spec.info.require_secure()
        self.spec = spec
        self._native = toolkit.compiler()
        self._info = self._native.ProgramInfo.deserialize(spec.info.data)
        self._keys: Any = None

    def __repr__(self) -> str:
        return f"Client({'with keys' if self._keys is not None else 'no keys yet'})"

    def keygen(self) -> bytes:
        """Draw new keys and return the evaluation keys, to be sent to the server once.

        Cost: seconds; the result has ``spec.info.key_bytes`` bytes and a little more.
        """
        entropy = (0, 0, 0, 0)  # zero asks the library for the operating system's entropy
        self._keys = self._native.Keyset(self._info, None, *entropy, None)
        return self.evaluation_keys()

    def evaluation_keys(self) -> bytes:
        """Return the evaluation keys of the present secret key, without it."""
        return bytes(self._present().get_server_keys().serialize())

    def secret_keys(self) -> bytes:
        """Return secret and evaluation keys for the client's own disk. Never send them."""
        return bytes(self._present().serialize())

    def use_secret_keys(self, data: bytes) -> None:
        """Take keys that :meth:`secret_keys` returned for this program.

        Raises
        ------
        MalformedMessage
            They are not.
        """
        if len(data) <= self.spec.info.key_bytes + ENVELOPE_BYTES:
            raise MalformedMessage("these are not the secret keys of this program; it has others")
        self._keys = _decoded(self._native.Keyset.deserialize, data, "secret keys")

    def encrypt(self, x: Ints) -> list[bytes]:
        """Return one query per image.

        Parameters
        ----------
        x
            Images, shape (n, *spec.image.shape), integers within the bounds of the image.

        Raises
        ------
        ParameterError
            Wrong type, shape or range.
        ProtocolError
            There are no keys yet.
        """
        images = self.spec.image.check(x) - self.spec.image.low
        circuit = self._circuit()
        value = self._native.Value
        return [bytes(circuit.prepare_input(value(one[None]), 0).serialize()) for one in images]

    def decrypt(self, answers: Sequence[bytes]) -> Answer:
        """Return the scores in the answers, one per image.

        Raises
        ------
        MalformedMessage
            An answer has another size or form than this program's.
        """
        circuit = self._circuit()
        rows = np.empty((len(answers), len(self.spec.scale)), np.int64)
        for row, data in zip(rows, answers, strict=True):
            value = _value(self._native, data, self.spec.info.answer_bytes, "answer")
            try:
                row[:] = np.asarray(circuit.process_output(value, 0).to_py_val()).reshape(-1)
            except (RuntimeError, ValueError) as error:
                raise MalformedMessage("the answer does not belong to this program") from error
        integers = rows + self.spec.low
        scores = integers * self.spec.scale + self.spec.offset
        return Answer(scores=scores, integers=integers, mode=Mode.EXECUTE)

    def _present(self) -> Any:  # noqa: ANN401
        if self._keys is None:
            raise ProtocolError("the client has no keys yet; call keygen() first")
        return self._keys

    def _circuit(self) -> Any:  # noqa: ANN401
        program = self._native.ClientProgram.create_encrypted(self._info, self._present())
        return program.get_client_circuit(self.spec.info.function)


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationKeys:
    """Keys of one client, loaded at the server; they compute and cannot decrypt."""

    keys: Any


class Server:
    """The side that computes; close it, or use ``with``.

    Parameters
    ----------
    artefact
        Native code: only what this operator compiled.
    digest
        ``artefact.digest`` as the operator recorded it when compiling.

    Raises
    ------
    UntrustedArtifact
        The digest differs.
    MalformedMessage
        The artefact does not load.
    """

    def __init__(self, artefact: Artefact, *, digest: str) -> None:
        if artefact.digest != digest:
            raise UntrustedArtifact(
                "the compiled program is not the one that was recorded; compile it again from the "
                "integer graph"
            )
        if set(artefact.files) != {PROGRAM_FILE, LIBRARY_FILE}:
            raise MalformedMessage(f"a compiled program is {PROGRAM_FILE} and {LIBRARY_FILE}")
        self.info = ProgramInfo(artefact.files[PROGRAM_FILE])
        self._native = toolkit.compiler()
        self._folder = Path(tempfile.mkdtemp(prefix="privml-fhe-"))
        for name, data in artefact.files.items():
            atomic_write(self._folder / name, data)
        library = _decoded(self._native.Library, str(self._folder), "compiled program")
        program = self._native.ServerProgram(library, False)
        self._circuit = program.get_server_circuit(self.info.function)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def load_keys(self, data: bytes) -> EvaluationKeys:
        """Read a client's evaluation keys.

        Raises
        ------
        MalformedMessage
            They have another size or form than this program's, or hold a secret key.
        """
        _check_size(data, self.info.key_bytes, "evaluation keys")
        decoder = self._native.ServerKeyset.deserialize
        return EvaluationKeys(_decoded(decoder, data, "evaluation keys"))

    def run(self, query: bytes, keys: EvaluationKeys) -> bytes:
        """Return the encrypted answer to one query. Cost: see the plan.

        Raises
        ------
        MalformedMessage
            The query has another size or form than this program's.
        """
        value = _value(self._native, query, self.info.query_bytes, "query")
        try:
            with own_signals():
                (answer,) = self._circuit.call([value], keys.keys)
        except RuntimeError as error:
            raise MalformedMessage("the query does not belong to this program") from error
        return bytes(answer.serialize())

    def close(self) -> None:
        """Remove the unpacked program."""
        if fs.exists(self._folder):
            fs.remove_tree(self._folder)


def _check_size(data: bytes, expected: int, what: str) -> None:
    if not expected < len(data) <= expected + ENVELOPE_BYTES:
        raise MalformedMessage(
            f"the {what} have {len(data)} bytes where this program's have {expected} and up to "
            f"{ENVELOPE_BYTES} more; use keys and messages of this very program"
        )


def _value(native: ModuleType, data: bytes, expected: int, what: str) -> Any:  # noqa: ANN401
    _check_size(data, expected, f"bytes of the {what}")
    return _decoded(native.TransportValue.deserialize, data, what)


def _decoded(decoder: Any, data: object, what: str) -> Any:  # noqa: ANN401
    try:
        return decoder(data)
    except RuntimeError as error:
        raise MalformedMessage(f"the {what} cannot be read; they are damaged") from error
