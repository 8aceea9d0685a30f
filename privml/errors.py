"""Error taxonomy of privml.

Every error the library raises on purpose derives from :class:`PrivmlError` and carries a stable
dotted ``code``, an exit code of the command line and a general remedy. Messages say what was
wrong and what to do; no error carries secret data. Decoders of foreign bytes raise only
:class:`MalformedMessage`.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn


class PrivmlError(Exception):
    """Root of all errors raised on purpose."""

    code: ClassVar[str] = "privml"
    exit_code: ClassVar[int] = 3
    remedy: ClassVar[str] = "read the message"

    def diagnostics(self) -> str:
        """Return the error as one line for people: code and message."""
        return f"[{self.code}] {self}"


class ParameterError(PrivmlError):
    """A parameter is out of range or has a wrong shape, dtype or scale."""

    code = "parameter"
    remedy = "change the value that the message names"


class UnsupportedError(PrivmlError):
    """A model or option cannot be run; the message names the part and a replacement if any."""

    code = "unsupported"
    remedy = "use the replacement that the message names, or another model"


class FheRefused(UnsupportedError):
    """A network cannot run under fully homomorphic encryption as it is.

    Attributes
    ----------
    layer
        Name of the layer, or an empty string for the whole network.
    value, limit
        What was found and what is allowed, where they are numbers.
    """

    code = "unsupported.fhe"
    remedy = "change the layer or the option that the message names"

    def __init__(
        self,
        message: str,
        *,
        layer: str = "",
        value: float | None = None,
        limit: float | None = None,
    ) -> None:
        super().__init__(message)
        self.layer = layer
        self.value = value
        self.limit = limit


class UnsupportedLayer(FheRefused):
    """A layer has no encrypted form; the message names a replacement."""

    code = "unsupported.fhe.layer"
    remedy = "use the replacement that the message names"


class BitsExceeded(FheRefused):
    """An integer gets wider than the scheme can hold."""

    code = "unsupported.fhe.bits"
    remedy = "use fewer weight or activation bits, or fewer input channels, in the layer named"


class DepthExceeded(FheRefused):
    """A polynomial network has more multiplicative levels than the parameters give."""

    code = "unsupported.fhe.depth"
    remedy = "remove an activation, or use the TFHE scheme"


class MemoryExceeded(FheRefused):
    """A run would need more memory than the machine has."""

    code = "unsupported.fhe.memory"
    remedy = "use fewer table bits or a smaller network, or a machine with more memory"


class LicenceNotAcknowledged(FheRefused):
    """The licence of an optional dependency was not acknowledged."""

    code = "unsupported.fhe.licence"
    remedy = "read the licence notice, then acknowledge it as the message says"


class ProtocolError(PrivmlError):
    """The two-party protocol could not go on; no output was produced."""

    code = "protocol"
    remedy = "look at the other party's message, then run again"
    exit_code = 4


class MalformedMessage(ProtocolError):
    """Bytes from outside do not follow the declared format."""

    code = "protocol.malformed"
    remedy = "get the file or start the peer again; use the same version on both sides"


class HandshakeMismatch(ProtocolError):
    """The parties disagree on a field that the handshake binds; nothing was shared."""

    code = "protocol.handshake"
    remedy = "use one plan, its model, and the two pools of one `privml deal`"
    exit_code = 3


class TranscriptMismatch(ProtocolError):
    """The parties saw different messages."""

    code = "protocol.transcript"
    remedy = "run again; if it repeats, something alters the link"


class PeerAborted(ProtocolError):
    """The peer stopped the run or vanished."""

    code = "protocol.peer_aborted"
    remedy = "look at the peer's own message, then run again"


class DeadlineExceeded(ProtocolError):
    """The peer did not answer in time."""

    code = "protocol.deadline"
    remedy = "check that the peer runs and can be reached; raise the deadline"


class CorrelationExhausted(ProtocolError):
    """No unused correlated randomness is left, or what is asked for was already spent."""

    code = "protocol.correlations"
    remedy = "deal a new pool for both parties"
    exit_code = 3


class SecurityError(PrivmlError):
    """A security rule would be broken; the operation was refused."""

    code = "security"
    remedy = "do what the message says; there is no way around it"
    exit_code = 3


class InsecureParameters(SecurityError):
    """Parameters below the required security level."""

    code = "security.parameters"
    remedy = "choose sizes or a precision that reach the security level"


class InsecureRandomness(SecurityError):
    """Randomness that is not fit for secrets was offered where secrets are drawn."""

    code = "security.randomness"
    remedy = "draw secrets from `privml.rng.Csprng`"


class ClaimTooWeak(SecurityError):
    """The run would give a weaker guarantee than was asked for."""

    code = "security.claim"
    remedy = "ask for the weaker claim explicitly, or change the plan"


class UntrustedArtifact(SecurityError):
    """A file or key does not match its pinned digest or fingerprint."""

    code = "security.untrusted"
    remedy = "compare fingerprint or digest with its owner; do not unpin"


class SchemaError(ParameterError, ValueError):
    """Rows, columns, labels or ids do not have the form the model was declared with.

    Also a ``ValueError``, as callers of scikit-learn estimators expect.
    """

    code = "parameter.schema"
    remedy = "give rows and ids the declared form"


class UnlearningError(PrivmlError):
    """A request to learn or forget cannot be carried out; the model is unchanged."""

    code = "unlearning"
    remedy = "correct the request; the model is as before"


class UnknownIdError(UnlearningError, KeyError):
    """An id is not that of a living row: never seen or already forgotten, alike."""

    code = "unlearning.unknown_id"
    remedy = "ask for ids of living rows only"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DuplicateIdError(UnlearningError):
    """An id occurs twice in one request, or a row to be learned is already there."""

    code = "unlearning.duplicate_id"
    remedy = "name each id once, and learn only new ones"


class EmptyForestError(UnlearningError):
    """No row is left, so there is nothing to predict from."""

    code = "unlearning.empty"
    remedy = "learn rows before predicting"


class ModelUnusable(UnlearningError):
    """A change broke off half-way; the model refuses to answer until it is fitted or loaded."""

    code = "unlearning.unusable"
    remedy = "fit or load the model again"


class StorageError(PrivmlError):
    """A file could not be read or written durably."""

    code = "storage"
    remedy = "check path, permissions and disk"


class Corrupt(StorageError):
    """A file does not have the content its header or checksum promises."""

    code = "storage.corrupt"
    remedy = "restore the file, or make it again"


class CorruptModelError(Corrupt):
    """A saved model is damaged, or its content does not follow from its rows and key."""

    code = "storage.corrupt_model"
    remedy = "restore the saved model from a copy"


class ModelVersionError(StorageError):
    """A saved model was written by a newer version of the format."""

    code = "storage.model_version"
    remedy = "update privml"


class Full(StorageError):
    """The disk or quota is full; nothing was half-written."""

    code = "storage.full"
    remedy = "free space, or choose another disk"


class Locked(StorageError):
    """Another process holds the file."""

    code = "storage.locked"
    remedy = "wait for the other process, or end it"


def internal(condition: bool, what: str) -> None:
    """Raise ``AssertionError`` if an invariant of our own code is broken; survives ``-O``."""
    if not condition:
        raise AssertionError(f"internal error in privml, please report: {what}")


def unreachable(what: str) -> NoReturn:
    """Mark a branch that our own code cannot reach."""
    raise AssertionError(f"internal error in privml, please report: {what}")
