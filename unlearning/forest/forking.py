"""Forks of the process: a child finds every forest whole and every lock free.

A fork copies the memory of one instant, with locks that belong to threads which do not exist in the
child, and forests that such a thread was changing. So each fork waits until no forest is in use,
and the child starts with fresh locks.
"""

from __future__ import annotations

import os
from threading import RLock
from typing import Final, Protocol
from weakref import ReferenceType, ref

from privml.unlearning.forest.interface import Core


class Forkable(Protocol):
    """A model: the lock of its writers, and its core."""

    core: Core

    @property
    def lock(self) -> RLock:
        """Lock that writers hold."""


# A plain dict, since each use of it is one step that no other thread can see half done.
_models: Final[dict[ReferenceType[Forkable], None]] = {}
_held: Final[list[Forkable]] = []


def watch(model: Forkable) -> None:
    """Have forks wait for ``model``; to be called once its first rows are in."""
    _models[ref(model, _models.pop)] = None


def _before() -> None:
    for reference in list(_models):
        model = reference()
        if model is not None:
            model.lock.acquire()
            model.core.hold()
            _held.append(model)


def _in_parent() -> None:
    while _held:
        model = _held.pop()
        model.core.release()
        model.lock.release()


def _in_child() -> None:
    while _held:
        model = _held.pop()
        model.core.renew()
        model.lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
