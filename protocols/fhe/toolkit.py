"""The one door to concrete-python: loaded on first use, with its licence notice.

Nothing else in privml imports ``concrete``. Planning, training, the numpy executor and the
decoding of bundles work without it. The parties of a run need only its compiler library
(:func:`compiler`, about 80 MB, no torch); compiling a graph needs the front end
(:func:`frontend`), which loads torch as well.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import Final

from privml.errors import UnsupportedError
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.signals import own_signals

VERSION: Final = "2.11.0"
"""The release of concrete-python whose behaviour the guards of this package were tested on."""

_INSTALL: Final = (
    "install the extra with `pip install 'privml[fhe]'` (Python 3.11 or 3.12, numpy below 2), or "
    "use mode='clear', which needs nothing"
)


class LicenceNotice(UserWarning):
    """Shown once per process, when concrete-python is first used."""


def missing() -> str | None:
    """Return why TFHE cannot be used in this environment, or None. Imports nothing."""
    try:
        found = metadata.version("concrete-python")
    except metadata.PackageNotFoundError:
        return f"concrete-python is not installed; {_INSTALL}"
    if found != VERSION:
        return f"concrete-python {found} is installed, but {VERSION} is needed; {_INSTALL}"
    return None


def frontend() -> ModuleType:
    """Return ``concrete.fhe``, which traces and compiles circuits.

    Raises
    ------
    UnsupportedError
        concrete-python is missing, of another version, or does not load.
    """
    return _load("concrete.fhe")


def compiler() -> ModuleType:
    """Return ``concrete.compiler``: keys, ciphertexts and running, without torch.

    Raises
    ------
    UnsupportedError
        As for :func:`frontend`.
    """
    return _load("concrete.compiler")


@cache
def _load(name: str) -> ModuleType:
    reason = missing()
    if reason is not None:
        raise UnsupportedError(reason)
    _notice()
    try:
        with warnings.catch_warnings(), own_signals():
            warnings.simplefilter("ignore")  # its namespace package uses pkg_resources
            return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"concrete-python does not load on Python {sys.version_info[0]}."
            f"{sys.version_info[1]} ({error}); it needs setuptools below 81 and numpy below 2: "
            f"{_INSTALL}"
        ) from error


@cache
def _notice() -> None:
    warnings.warn(NOTICE, LicenceNotice, stacklevel=4)
