"""Numbered rounds of frames between two parties: the state that both advance in step."""

from __future__ import annotations

import contextlib

from privml.errors import ParameterError, PrivmlError
from privml.meter import Tally
from privml.transcript import Transcript
from privml.transport.channel import Channel, Deadline
from privml.transport.frames import FrameReader, FrameWriter, run_flight
from privml.wire import HEADER_BYTES, MAX_LENGTH, MAX_TAG, NO_SESSION, Expected, FrameType, Header

_GOODBYE_S = 0.25


class Rounds:
    """One channel, its round counter and its transcript; after an error only :meth:`end` works.

    Attributes
    ----------
    rank
        0 server, 1 client.
    tag
        Session tag of all frames, 8 bytes.
    transcript
        Hash of the frames so far.
    """

    def __init__(self, channel: Channel, *, rank: int) -> None:
        self.rank = rank
        self.tag = NO_SESSION
        self.transcript = Transcript()
        self._channel = channel
        self._number = 0
        self._cut = False

    def flight(
        self,
        kind: FrameType,
        tag: int,
        *,
        mine: memoryview | None,
        bounds: tuple[int, int] | None,
        deadline_s: float,
    ) -> tuple[memoryview, Tally]:
        """Send `mine` and receive a payload within `bounds`, at the same time.

        Parameters
        ----------
        kind, tag
            Frame type and message tag in both directions.
        mine
            Payload to send, or None.
        bounds
            Smallest and largest size in bytes of the payload to receive, or None.
        deadline_s
            Seconds for the round.

        Returns
        -------
        memoryview
            Received payload, empty if none was due.
        Tally
            Bytes on the wire and seconds spent idle.
        """
        writer = reader = None
        if mine is not None:
            header = Header(kind, self.rank, self.tag, self._number, tag, mine.nbytes)
            writer = FrameWriter(header, mine, transcript=self.transcript)
        if bounds is not None:
            expected = Expected(kind, 1 - self.rank, self.tag, self._number, tag, *bounds)
            reader = FrameReader(expected, transcript=self.transcript)
        try:
            wait_s = run_flight(
                self._channel,
                writer,
                reader=reader,
                deadline=Deadline.after(deadline_s),
                doing=f"in round {self._number} ({kind.name.lower()} message {tag})",
            )
        except BaseException:
            self._cut = writer is not None and writer.cut
            raise
        self._number += 1
        wire = Tally(
            wire_sent=writer.wire_bytes if writer else 0,
            wire_received=reader.wire_bytes if reader else 0,
            wait_s=wait_s,
        )
        return (reader.payload if reader else memoryview(b"")), wire

    def end(self, kind: FrameType) -> None:
        """Send the last frame as far as the link takes it in a moment, and close the channel.

        In the middle of a frame nothing more is sent: the peer sees the stream end.
        """
        self.transcript.forget_key()
        try:
            if not self._cut:
                self._say_goodbye(Header(kind, self.rank, self.tag, 0, 0, 0))
        finally:
            self._channel.close()

    def _say_goodbye(self, header: Header) -> None:
        with contextlib.suppress(PrivmlError, OSError):
            run_flight(
                self._channel,
                FrameWriter(header, memoryview(b""), transcript=Transcript()),
                reader=None,
                deadline=Deadline.after(_GOODBYE_S),
                doing="ending the session",
            )


def check_arguments(tag: int, bounds: tuple[int, int] | None) -> None:
    """Raise :class:`ParameterError` unless tag and sizes fit into a frame header."""
    if not 0 <= tag <= MAX_TAG:
        raise ParameterError(f"a message tag lies in [0, 2^32), got {tag}")
    if bounds is not None and not 0 <= bounds[0] <= bounds[1] <= MAX_LENGTH - HEADER_BYTES:
        raise ParameterError(f"an expected size must lie in [0, 2^48), got {bounds[1]}")
