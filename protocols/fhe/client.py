"""Client of a remote server of encrypted images: sends keys and queries, fetches answers.

The secret key stays in :class:`~privml.protocols.fhe.parties.Client`; what leaves is evaluation
keys and ciphertexts, compressed. A dropped connection is opened again and the work goes on: the
server knows which images of the job it has, so nothing that is finished is computed twice, and
answers that were not fetched yet are fetched again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from privml.errors import (
    DeadlineExceeded,
    HandshakeMismatch,
    MalformedMessage,
    PeerAborted,
    ProtocolError,
)
from privml.protocols.fhe import messages
from privml.protocols.fhe.bundle import MAX_PART_BYTES, ClientPart
from privml.protocols.fhe.entry import Scores
from privml.protocols.fhe.messages import (
    BINDING,
    DOWNLOAD,
    MAX_IMAGES,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_BYTES,
    REPLY,
    REQUEST,
    UPLOAD,
    Refused,
)
from privml.protocols.fhe.programs import KeyHolder, PublicPart
from privml.rng import Csprng
from privml.session import Session
from privml.transport import tls
from privml.transport.channel import Channel
from privml.transport.identity import Identity

Progress = Callable[[int, int], None]
"""Called with the number of images that have an answer, and of all."""

_CHUNK_IMAGES: Final = 64
_LEAST_BYTES_PER_S: Final = 1e5  # of a link that is still waited for
_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)


def new_job() -> str:
    """Return the id of a new job, 32 hexadecimal digits."""
    return Csprng.fresh().token(16).hex()


def _silent(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Address:
    """Where the server is, and how both sides prove who they are.

    Attributes
    ----------
    host, port
        Of the server.
    identity, pin
        Certificate of this side, and fingerprint of the server's.
    connect_s, reply_s
        Seconds for connecting, and for one reply or transfer of bytes.
    patience_s
        For so long a dropped connection is opened again, without progress in between.
    """

    host: str
    port: int
    identity: Identity
    pin: str
    connect_s: float = 30.0
    reply_s: float = 120.0
    patience_s: float = 120.0

    def dial(self) -> Channel:
        """Return an authenticated channel."""
        return tls.dial(
            self.host, self.port, identity=self.identity, pin=self.pin, deadline_s=self.connect_s
        )


class Link:
    """One open connection; made by :func:`connect`."""

    def __init__(self, session: Session, *, reply_s: float) -> None:
        self._session, self._reply_s = session, reply_s

    def call(self, request: messages.Request, upload: bytes | None = None) -> messages.Reply:
        """Send a request, then the bytes it announces, and return the reply.

        Raises
        ------
        Refused
            The server does not do it; the connection stays usable.
        """
        self._session.send_blob(REQUEST, messages.encode(request), deadline_s=self._reply_s)
        reply = self._reply()
        if upload is not None:
            if not isinstance(reply, messages.Go):
                raise MalformedMessage("the server did not answer as the protocol says")
            slowest_s = self._reply_s + len(upload) / _LEAST_BYTES_PER_S
            self._session.send_blob(UPLOAD, upload, deadline_s=slowest_s)
            reply = self._reply()
        return reply

    def download(self, nbytes: int, *, most: int) -> memoryview:
        """Return the bytes that a reply announced."""
        if not 0 < nbytes <= most:
            raise MalformedMessage("the server announced more bytes than there can be")
        data = self._session.recv_blob(DOWNLOAD, max_bytes=nbytes, deadline_s=self._reply_s)
        if len(data) != nbytes:
            raise MalformedMessage("the server sent another number of bytes than it announced")
        return data

    def _reply(self) -> messages.Reply:
        raw = self._session.recv_blob(REPLY, max_bytes=MAX_MESSAGE_BYTES, deadline_s=self._reply_s)
        reply = messages.decode_reply(raw)
        if isinstance(reply, messages.Refusal):
            raise Refused(reply.reason, reply.message)
        return reply


@contextmanager
def connect(address: Address, *, dial: Callable[[], Channel] | None = None) -> Iterator[Link]:
    """Open a connection; errors as :func:`privml.transport.tls.dial` and ``Session.open``."""
    channel = address.dial() if dial is None else dial()
    with Session.open(
        channel, rank=1, binding=BINDING, offer={}, deadline_s=address.connect_s
    ) as session:
        link = Link(session, reply_s=address.reply_s)
        yield link
        with suppress(ProtocolError):  # all that was wanted is here
            session.send_blob(REQUEST, messages.encode(messages.Bye()), deadline_s=address.reply_s)


def ask_part(address: Address, program: str | None = None) -> bytes:
    """Return the client's part of a program as the server sends it, of whatever scheme."""
    with connect(address) as link:
        reply = link.call(messages.Describe(program))
        nbytes = reply.nbytes if isinstance(reply, messages.Done) else 0
        return bytes(link.download(nbytes, most=MAX_PART_BYTES))


def describe(address: Address, program: str | None = None) -> ClientPart:
    """Return the client's part of a TFHE program that the server sends.

    Parameters
    ----------
    program
        Id of the program, which pins everything; None takes what the server offers, if it offers
        one: then compare ``part.manifest.id`` with what the operator says.

    Raises
    ------
    MalformedMessage
        The part is not valid or not that of ``program``.
    """
    part = ClientPart.from_bytes(ask_part(address, program))
    if program is not None and part.manifest.id != program:
        raise MalformedMessage("the server sent another program than was asked for")
    return part


Result = TypeVar("Result", bound=Scores)


@dataclass
class Work(Generic[Result]):
    """A batch of images at a remote server, and what has come back.

    Parameters
    ----------
    address
        The server.
    part
        The client's part of the program.
    client
        With keys.
    keys
        Its evaluation keys as bytes.
    images
        Integers, shape (n, *shape), 1 to 4096 images; under CKKS batches, one per query.
    job
        Id from :func:`new_job`; that of an earlier attempt finds what was finished.
    progress
        See :data:`Progress`.
    note
        Told in a line what happens to the connection.
    dial
        Opens a channel; the address's way if None.
    """

    address: Address
    part: PublicPart
    client: KeyHolder[Result]
    keys: bytes
    images: Sized
    job: str = field(default_factory=new_job)
    progress: Progress = _silent
    note: Callable[[str], None] = field(default=lambda text: None)
    dial: Callable[[], Channel] | None = None
    resumed: int = field(default=0, init=False)
    connections: int = field(default=0, init=False)
    uploads: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.images) <= MAX_IMAGES:
            raise MalformedMessage(f"a job has 1 to {MAX_IMAGES} images, not {len(self.images)}")
        self._units: Any = self.images
        self._queries: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        self._chunk, self._since = _CHUNK_IMAGES, time.monotonic()
        self._digest = hashlib.sha256(self.keys).hexdigest()

    def run(self) -> Result:
        """Return the decrypted scores of all images, over as many connections as it takes.

        Raises
        ------
        Refused
            The server will not compute an image.
        PeerAborted, DeadlineExceeded
            No connection for longer than the address's patience.
        UntrustedArtifact, HandshakeMismatch, MalformedMessage
            The other side is not the server, or does not follow the protocol; a handshake that
            fails after a first connection counts as a lost connection.
        """
        self._units = self.part.check(self.images)
        self._since, tried = time.monotonic(), 0
        while len(self._answers) < len(self.images):
            before = len(self._answers)
            try:
                self._once()
            except (PeerAborted, DeadlineExceeded, HandshakeMismatch) as error:
                if isinstance(error, HandshakeMismatch) and not self.connections:
                    raise
                # After a first connection: a server that ends in the middle of a handshake.
                if len(self._answers) > before:
                    tried = 0
                if self._lost_patience():
                    raise
                pause = _PAUSES_S[min(tried, len(_PAUSES_S) - 1)]
                tried += 1
                self.note(f"connection lost ({error.code}); trying again in {pause:g} s")
                time.sleep(pause)
        return self.client.decrypt([self._answers[i] for i in range(len(self.images))])

    def _lost_patience(self) -> bool:
        return time.monotonic() - self._since > self.address.patience_s

    def _once(self) -> None:
        with connect(self.address, dial=self.dial) as link:
            self.connections += 1
            window = self._open(link)
            first = True
            while len(self._answers) < len(self.images):
                settled = len(self._answers)
                state = link.call(messages.Watch(self.job, settled if not first else 0))
                if not isinstance(state, messages.State):
                    raise MalformedMessage("the server did not answer as the protocol says")
                if first and state.finished:
                    self.resumed += len(set(state.finished) - set(self._answers))
                first = False
                self._fetch(link, [i for i in state.finished if i not in self._answers])
                self._check(link, state)
                known = {*state.waiting, *self._answers, *state.finished}
                room = window - len(state.waiting)
                self._submit(link, [i for i in range(len(self.images)) if i not in known][:room])
            with suppress(ProtocolError):  # all answers are here; the server's copies expire
                link.call(messages.Drop(self.job))

    def _open(self, link: Link) -> int:
        reply = link.call(messages.Open(self.part.id, self._digest))
        if not isinstance(reply, messages.Opened):
            raise MalformedMessage("the server did not answer as the protocol says")
        if not reply.keys:
            self.note(f"sending evaluation keys, {len(self.keys) / 1e6:.1f} MB")
            link.call(messages.SendKeys(len(self.keys)), self.keys)
            self.uploads += 1
        return reply.window

    def _check(self, link: Link, state: messages.State) -> None:
        """Send the keys again if they were evicted; an image that cannot be computed ends it."""
        reasons = set(state.failed.values())
        if not reasons:
            return
        if reasons == {"no-keys"} and self.uploads < 3:
            self._open(link)
            return
        image, reason = next(iter(sorted(state.failed.items())))
        raise Refused(reason, f"image {image} was not computed; see the server's messages")

    def _submit(self, link: Link, images: list[int]) -> None:
        size = self.part.traffic.query.most
        most = max(1, min(self._chunk, MAX_PAYLOAD_BYTES // size))
        for start in range(0, len(images), most):
            chunk = images[start : start + most]
            for i in chunk:
                if i not in self._queries:
                    (self._queries[i],) = self.client.encrypt(self._units[i : i + 1])
            queries = [self._queries[i] for i in chunk]
            request = messages.Submit(self.job, tuple(chunk), tuple(map(len, queries)))
            try:
                link.call(request, b"".join(queries))
            except Refused as error:
                if error.reason == "busy" and not self._lost_patience():
                    self._chunk = max(1, len(chunk) // 2)
                    time.sleep(_PAUSES_S[0])
                    return
                if error.reason == "no-keys" and self.uploads < 3:
                    self._open(link)
                    return
                raise

    def _fetch(self, link: Link, images: list[int]) -> None:
        size = self.part.traffic.answer.most
        most = max(1, MAX_PAYLOAD_BYTES // size)
        for start in range(0, len(images), most):
            chunk = images[start : start + most]
            reply = link.call(messages.Fetch(self.job, tuple(chunk)))
            if not isinstance(reply, messages.Answers) or len(reply.sizes) > len(chunk):
                raise MalformedMessage("the server did not answer as the protocol says")
            total = sum(reply.sizes)
            if not total:
                continue
            data = link.download(total, most=len(chunk) * size)
            parts = messages.split(data, reply.sizes)
            for image, answer in zip(chunk, parts, strict=False):
                if answer:
                    self._answers[image] = answer
                    self._queries.pop(image, None)
                    self._since = time.monotonic()
                    self.progress(len(self._answers), len(self.images))
