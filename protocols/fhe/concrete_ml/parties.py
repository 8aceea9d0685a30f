"""Client and server of an encrypted scikit-learn model, apart: bytes go between them.

Each side is a process of its own. The client's holds the secret key and no weights; the server's
gets the compiled program and, as bytes, evaluation keys and ciphertexts. Its program has no verb
that reads a secret key, and keys longer than evaluation keys are refused before they reach it.
Sizes are checked here, before a native decoder sees the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from privml.errors import MalformedMessage, ParameterError, UntrustedArtifact
from privml.protocols.fhe.concrete_ml import bundles
from privml.protocols.fhe.concrete_ml.bundles import Bundle
from privml.protocols.fhe.concrete_ml.environment import Environment
from privml.protocols.fhe.concrete_ml.heads import Head
from privml.protocols.fhe.concrete_ml.process import Limits, Role, Worker
from privml.protocols.fhe.concrete_ml.worker.frames import blob
from privml.protocols.fhe.nodes import Floats
from privml.protocols.fhe.parties import PROGRAM_FILE
from privml.protocols.fhe.program_info import ENVELOPE_BYTES, ProgramInfo
from privml.storage import fs
from privml.storage.publish import atomic_write

MAX_ROWS: Final = 1024
"""Most rows in one call of the client's process."""


class EstimatorClient:
    """The side that holds the secret key; close it, or use ``with``.

    Parameters
    ----------
    bundle
        The client's files.
    environment, limits
        As for the worker process.

    Raises
    ------
    InsecureParameters
        The program's keys would be weaker than 128 bits.
    UnsupportedError
        The concrete-ml environment is missing.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        environment: Environment | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.head = Head.from_json(bundle.files[bundles.HEAD])
        self.info = ProgramInfo(bundle.files[bundles.PARAMETERS])
        self.info.require_secure()
        if self.info.input_shape != (1, self.head.features):
            raise MalformedMessage("the program takes another number of features than its head")
        self._worker = Worker(Role.CLIENT, environment=environment, limits=limits)
        try:
            self._worker.call("load", arrays={"info": blob(self.info.data)})
        except BaseException:
            self._worker.close()
            raise

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        environment: Environment | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """Open the folder ``client`` of a saved model. It may come from somebody else.

        Raises
        ------
        UntrustedArtifact, Corrupt, MalformedMessage
            The files are damaged or do not fit together.
        """
        bundle = bundles.load(Path(folder), bundles.CLIENT_FILES, digest=None)
        return cls(bundle, environment=environment, limits=limits)

    def __repr__(self) -> str:
        return f"EstimatorClient({self.head.features} features, {self.head.link.value})"

    def keygen(self) -> bytes:
        """Draw new keys and return the evaluation keys, to be sent to the server once."""
        return self._worker.call("keygen").arrays["keys"].tobytes()

    def secret_keys(self) -> bytes:
        """Return secret and evaluation keys for the client's own disk. Never send them."""
        return self._worker.call("secret_keys").arrays["keys"].tobytes()

    def use_secret_keys(self, data: bytes) -> bytes:
        """Take what :meth:`secret_keys` returned; return the evaluation keys.

        Raises
        ------
        MalformedMessage
            These are no secret keys of this program.
        """
        if len(data) <= self.info.key_bytes + ENVELOPE_BYTES:
            raise MalformedMessage("these are not the secret keys of this program; it has others")
        answer = self._worker.call("use_secret_keys", arrays={"keys": blob(data)})
        return answer.arrays["keys"].tobytes()

    def encrypt(self, X: object) -> list[bytes]:
        """Return one query per row of X (n, features), of which there are at most 1024.

        Raises
        ------
        ParameterError
            Wrong shape, not finite, too many rows, or there are no keys yet.
        """
        rows = self.head.quantise(X)
        if len(rows) > MAX_ROWS:
            raise ParameterError(f"at most {MAX_ROWS} rows are encrypted at once, not {len(rows)}")
        answer = self._worker.call("encrypt", arrays={"rows": rows})
        return [answer.arrays[str(number)].tobytes() for number in range(len(rows))]

    def scores(self, answers: Sequence[bytes]) -> Floats:
        """Return the scores in the answers, float64 (n, outputs).

        Raises
        ------
        MalformedMessage
            An answer has another size or form than this program's.
        """
        for answer in answers:
            check_size(answer, self.info.answer_bytes, "answer")
        if not answers:
            return np.empty((0, len(self.head.offset)))
        arrays = {str(number): blob(answer) for number, answer in enumerate(answers)}
        rows = self._worker.call("decrypt", arrays=arrays).arrays["rows"]
        if rows.shape != (len(answers), *self.info.output_shape[1:]):
            raise MalformedMessage("the answers have another shape than this program's")
        return self.head.scores(rows)

    def predict(self, answers: Sequence[bytes]) -> NDArray[Any]:
        """Return what the model predicts: labels, or values of a regression."""
        return self.head.predict(self.scores(answers))

    def predict_proba(self, answers: Sequence[bytes]) -> Floats:
        """Return the probability of each class, float64 (n, classes)."""
        return self.head.probabilities(self.scores(answers))

    def close(self) -> None:
        """End the process; keys that were not saved are gone."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EstimatorServer:
    """The side that computes; close it, or use ``with``.

    Parameters
    ----------
    bundle
        The server's files: native code, only what this operator compiled.
    digest
        ``bundle.manifest.digest`` as it was recorded when the model was compiled.
    environment, limits
        As for the worker process.

    Raises
    ------
    UntrustedArtifact
        The digest differs, or the program was compiled with other versions.
    UnsupportedError
        The concrete-ml environment is missing.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        digest: str,
        environment: Environment | None = None,
        limits: Limits | None = None,
    ) -> None:
        if bundle.manifest.digest != digest:
            raise UntrustedArtifact(
                "the compiled model is not the one that was recorded; compile it again"
            )
        self.info = ProgramInfo(bundle.files[PROGRAM_FILE])
        self._worker = Worker(Role.SERVER, environment=environment, limits=limits)
        try:
            self._load(bundle)
        except BaseException:
            self._worker.close()
            raise

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        digest: str,
        environment: Environment | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """Open the folder ``server`` of a model that this operator saved.

        Raises
        ------
        UntrustedArtifact, Corrupt
            It is not what was recorded.
        """
        bundle = bundles.load(Path(folder), bundles.SERVER_FILES, digest=digest)
        return cls(bundle, digest=digest, environment=environment, limits=limits)

    def __repr__(self) -> str:
        return f"EstimatorServer({self.info.function})"

    def use_keys(self, data: bytes) -> None:
        """Take the evaluation keys of the client whose queries follow.

        Raises
        ------
        MalformedMessage
            They have another size or form than this program's, or hold a secret key.
        """
        check_size(data, self.info.key_bytes, "evaluation keys")
        self._worker.call("use_keys", arrays={"keys": blob(data)})

    def run(self, query: bytes) -> bytes:
        """Return the encrypted answer to one query. Cost: see the plan.

        Raises
        ------
        MalformedMessage
            The query has another size or form than this program's, or there are no keys.
        ProtocolError
            The library cannot read or run it.
        """
        check_size(query, self.info.query_bytes, "query")
        return self._worker.call("run", arrays={"query": blob(query)}).arrays["answer"].tobytes()

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load(self, bundle: Bundle) -> None:
        folder = self._worker.folder / "program"
        fs.ensure_dir(folder)
        for name in bundles.SERVER_FILES:
            atomic_write(folder / name, bundle.files[name])
        self._worker.call("load", {"folder": str(folder)})


def check_size(data: bytes, expected: int, what: str) -> None:
    """Refuse bytes that are not as long as the program's parameters say.

    Raises
    ------
    MalformedMessage
        They are shorter, or longer by more than an envelope.
    """
    if not expected < len(data) <= expected + ENVELOPE_BYTES:
        raise MalformedMessage(
            f"the {what} has {len(data)} bytes where this program's has {expected} and up to "
            f"{ENVELOPE_BYTES} more; use keys and messages of this very program"
        )
