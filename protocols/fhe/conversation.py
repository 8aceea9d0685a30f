"""One connection of a client at the server: requests in, replies out, bounds before bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from privml.errors import PrivmlError, StorageError, internal
from privml.protocols.fhe import messages
from privml.protocols.fhe.key_store import Owner
from privml.protocols.fhe.messages import (
    DOWNLOAD,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_BYTES,
    REPLY,
    REQUEST,
    UPLOAD,
    Refused,
)

if TYPE_CHECKING:
    from privml.protocols.fhe.programs import Bounds, Traffic
    from privml.protocols.fhe.service import Service
    from privml.session import Session

_WATCH_S: Final = 5.0
_UPLOAD_S: Final = 600.0


class Conversation:
    """Answers one client until it says goodbye; any error of the link ends it.

    Parameters
    ----------
    service
        Holds programs, keys and images.
    session
        Open session of rank 0.
    client
        Fingerprint of the client's certificate.
    """

    def __init__(self, service: Service, session: Session, *, client: str) -> None:
        self._service, self._session, self._client = service, session, client
        self._owner: Owner | None = None
        self._keys = ""

    def run(self) -> None:
        """Answer requests until the client says goodbye or the link ends."""
        while True:
            raw = self._session.recv_blob(
                REQUEST, max_bytes=MAX_MESSAGE_BYTES, deadline_s=self._service.quota.idle_s
            )
            request = messages.decode_request(raw)
            if isinstance(request, messages.Bye):
                return
            try:
                reply, data = self._answer(request)
            except Refused as error:
                reply, data = messages.Refusal(error.reason, error.text), b""
            self._reply(reply)
            if data:
                self._session.send_blob(DOWNLOAD, data, deadline_s=_UPLOAD_S)

    def _answer(self, request: messages.Request) -> tuple[messages.Reply, bytes]:
        if isinstance(request, messages.Describe):
            data = self._service.parts[self._program(request.program)].public()
            return messages.Done(len(data)), data
        if isinstance(request, messages.Open):
            self._owner = Owner(self._client, self._program(request.program))
            self._keys = request.keys
            held = self._service.keys.digest(self._owner) == request.keys
            return messages.Opened(held, self._service.board.window), b""
        owner = self._opened()
        if isinstance(request, messages.SendKeys):
            return self._take_keys(owner, request), b""
        if isinstance(request, messages.Submit):
            return self._take_queries(owner, request), b""
        if isinstance(request, messages.Watch):
            found = self._service.board.state(
                owner, request.job, finished=request.finished, timeout_s=_WATCH_S
            )
            return messages.State(found.waiting, found.finished, found.failed, found.ahead), b""
        if isinstance(request, messages.Fetch):
            return self._give_answers(owner, request)
        internal(isinstance(request, messages.Drop), "every request is answered")
        if isinstance(request, messages.Drop):
            self._service.board.drop(owner, request.job)
        return messages.Done(), b""

    def _program(self, wanted: str | None) -> str:
        served = self._service.parts
        if wanted is None and len(served) == 1:
            return next(iter(served))
        if wanted not in served:
            names = ", ".join(sorted(served))
            raise Refused("unknown", f"name one of the programs served here: {names}")
        return str(wanted)

    def _opened(self) -> Owner:
        if self._owner is None:
            raise Refused("malformed", "name program and keys first")
        return self._owner

    def _traffic(self, owner: Owner) -> Traffic:
        return self._service.parts[owner.program].traffic

    def _take_keys(self, owner: Owner, request: messages.SendKeys) -> messages.Reply:
        from privml.protocols.fhe.service import ServiceEvent

        service, fitting = self._service, self._traffic(owner).keys
        if not fitting.hold(request.nbytes):
            raise Refused("malformed", f"evaluation keys of this program have {_words(fitting)}, "
                          f"not {request.nbytes}")  # fmt: skip
        if request.nbytes > service.quota.key_bytes:
            raise Refused("quota", "this server has no room for keys of this size")
        self._reply(messages.Go())
        data = self._session.recv_blob(UPLOAD, max_bytes=request.nbytes, deadline_s=_UPLOAD_S)
        try:
            evicted = service.keys.put(owner, bytes(data), digest=self._keys)
        except StorageError as error:
            service.on_event(ServiceEvent("refused", str(error), self._client))
            raise Refused("quota", "the server cannot store the keys; ask its operator") from error
        except PrivmlError as error:
            raise Refused("malformed", str(error)) from error
        service.changed_keys(owner, self._keys)
        text = f"keys of client {owner.client[:16]} stored, {len(data) / 1e6:.1f} MB"
        service.on_event(ServiceEvent("keys", text, owner.client))
        for other in evicted:
            gone = f"keys of client {other.client[:16]} evicted: they were used longest ago"
            service.on_event(ServiceEvent("evicted", gone, other.client))
        return messages.Done()

    def _take_queries(self, owner: Owner, request: messages.Submit) -> messages.Reply:
        fitting, total = self._traffic(owner).query, sum(request.sizes)
        if len(request.images) != len(request.sizes) or total > MAX_PAYLOAD_BYTES:
            raise Refused("malformed", "images and sizes do not fit together, or are too many")
        if not all(map(fitting.hold, request.sizes)):
            raise Refused("malformed", f"queries of this program have {_words(fitting)}")
        if self._service.keys.digest(owner) != self._keys:
            raise Refused("no-keys", "send the evaluation keys; they are not here any more")
        self._reply(messages.Go())
        data = self._session.recv_blob(UPLOAD, max_bytes=total, deadline_s=_UPLOAD_S)
        parts = messages.split(data, request.sizes)
        pairs = list(zip(request.images, parts, strict=True))
        self._service.board.submit(owner, request.job, pairs)
        return messages.Done()

    def _give_answers(self, owner: Owner, request: messages.Fetch) -> tuple[messages.Reply, bytes]:
        answers: list[bytes] = []
        total = 0
        for image in request.images:
            found = self._service.board.answer(owner, request.job, image) or b""
            total += len(found)
            if total > MAX_PAYLOAD_BYTES and answers:
                break
            answers.append(found)
        return messages.Answers(tuple(map(len, answers))), b"".join(answers)

    def _reply(self, reply: messages.Reply) -> None:
        self._session.send_blob(REPLY, messages.encode(reply), deadline_s=_UPLOAD_S)


def _words(fitting: Bounds) -> str:
    if fitting.least:
        return f"{fitting.least} bytes and a little more, at most {fitting.most}"
    return f"at most {fitting.most} bytes"
