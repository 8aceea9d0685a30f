"""The licence of the encrypted back end must be acknowledged before it is used for a user."""

from __future__ import annotations

from typing import Final

from privml.errors import LicenceNotAcknowledged

NOTICE: Final = (
    "TFHE execution uses concrete-python by Zama, under the BSD-3-Clause-Clear licence, which "
    "grants no patent licence: research and prototyping are free, commercial use needs a patent "
    "licence from Zama. (The metadata of its release 2.11.0 says plain BSD-3-Clause; its LICENSE "
    "file counts.)"
)
"""Shown in plans, in reports and at first use."""


def require_licence(*, acknowledged: bool, how: str) -> None:
    """Refuse to go on before the notice was acknowledged.

    Parameters
    ----------
    acknowledged
        Whether it was.
    how
        What to do, for the message.

    Raises
    ------
    LicenceNotAcknowledged
        It was not.
    """
    if not acknowledged:
        raise LicenceNotAcknowledged(f"{NOTICE} To go on, {how}.")
