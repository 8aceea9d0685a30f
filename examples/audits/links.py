"""Modelled time of a two-party run over a link that is not there.

``compute + flights * RTT / 2 + bytes / bandwidth``. A flight is one step of the chain of messages:
a simultaneous exchange counts one, a question with its answer two. Every number from this module
is labelled modelled, never measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A network between the two parties.

    Attributes
    ----------
    name
        Name in the report.
    bits_per_second
        Bandwidth of each direction.
    round_trip_s
        Round trip time.
    """

    name: str
    bits_per_second: float
    round_trip_s: float

    def seconds(self, *, compute_s: float, flights: int, nbytes: int) -> float:
        """Return the modelled seconds of a run.

        Parameters
        ----------
        compute_s
            Wall seconds of the run on a link without delay.
        flights
            Dependent steps on the link.
        nbytes
            Bytes that the link carries one after the other: the directions do not wait for each
            other, so each step counts its larger direction.
        """
        return compute_s + flights * self.round_trip_s / 2 + 8 * nbytes / self.bits_per_second


LAN = Link("LAN 3 Gbps, 0.8 ms", 3e9, 0.8e-3)
WAN = Link("WAN 200 Mbps, 40 ms", 200e6, 40e-3)
