"""Images of many clients: which wait, which are finished; bounded in number, bytes and time.

A job is a client's batch; its images are known by position. Clients are served in turn, one image
each, so that a long batch does not hold up a short one. Answers stay until the client drops the
job, until they are older than ``keep_s``, or until newer ones need the room; such an image is
unknown again and the client sends it anew.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from privml.errors import ParameterError
from privml.protocols.fhe.key_store import Owner
from privml.protocols.fhe.messages import MAX_IMAGES, Refused

_MAX_JOBS: Final = 64


@dataclass(frozen=True, eq=False)
class Task:
    """One image to be computed."""

    owner: Owner
    job: str
    image: int
    query: bytes


@dataclass
class _Image:
    state: Literal["waiting", "finished", "failed"]
    changed_s: float
    answer: bytes = b""
    reason: str = ""
    task: Task | None = None
    """What its answer must come from, while it waits."""


@dataclass
class _Client:
    queue: deque[Task] = field(default_factory=deque)
    jobs: OrderedDict[str, dict[int, _Image]] = field(default_factory=OrderedDict)
    running: int = 0

    @property
    def unfinished(self) -> int:
        return len(self.queue) + self.running


@dataclass(frozen=True)
class Snapshot:
    """State of one job; see :class:`privml.protocols.fhe.messages.State`."""

    waiting: tuple[int, ...]
    finished: tuple[int, ...]
    failed: dict[int, str]
    ahead: int


class Board:
    """Thread-safe.

    Parameters
    ----------
    window
        Most unfinished images of one client.
    max_bytes
        Most bytes of queries and answers of all clients, each kind.
    keep_s
        Seconds for which answers and failures are kept.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self, *, window: int = 256, max_bytes: int = 256 << 20, keep_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        if not 1 <= window <= MAX_IMAGES or max_bytes < 1 or not keep_s > 0:
            raise ParameterError(f"window lies in 1 to {MAX_IMAGES}, bytes and seconds above 0")
        self.window, self.max_bytes, self.keep_s = window, max_bytes, keep_s
        self._clock = clock
        self._clients: OrderedDict[Owner, _Client] = OrderedDict()
        self._query_bytes = self._answer_bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def submit(self, owner: Owner, job: str, images: Sequence[tuple[int, bytes]]) -> int:
        """Queue images that are not known yet or have failed; return how many.

        Raises
        ------
        Refused
            ``busy``: more than the window, or no room; wait until some are finished.
        """
        with self._changed:
            self._expire()
            client = self._clients.setdefault(owner, _Client())
            known = client.jobs.get(job, {})
            new = [
                (i, query)
                for i, query in dict(images).items()
                if i not in known or known[i].state == "failed"
            ]
            size = sum(len(query) for _, query in new)
            if client.unfinished + len(new) > self.window:
                raise Refused("busy", f"at most {self.window} images may be unfinished at once")
            if self._query_bytes + size > self.max_bytes:
                raise Refused("busy", "the server has no room for more queries now; try later")
            if job not in client.jobs and len(client.jobs) >= _MAX_JOBS:
                raise Refused("busy", f"at most {_MAX_JOBS} jobs are kept; drop or finish some")
            states = client.jobs.setdefault(job, {})
            for image, query in new:
                task = Task(owner, job, image, query)
                states[image] = _Image("waiting", self._clock(), task=task)
                client.queue.append(task)
            self._query_bytes += size
            self._changed.notify_all()
            return len(new)

    def take(self, timeout_s: float) -> Task | None:
        """Return the next image to compute, or None after a while; clients take turns."""
        with self._changed:
            self._changed.wait_for(self._somebody_waits, timeout_s)
            for owner, client in self._clients.items():
                if client.queue:
                    task = client.queue.popleft()
                    client.running += 1
                    self._clients.move_to_end(owner)
                    return task
            self._expire()
            return None

    def finish(self, task: Task, answer: bytes) -> None:
        """Keep the answer to an image that :meth:`take` gave out."""
        self._settle(task, _Image("finished", self._clock(), answer))

    def fail(self, task: Task, reason: str) -> None:
        """Keep why an image that :meth:`take` gave out has no answer."""
        self._settle(task, _Image("failed", self._clock(), reason=reason[:200]))

    def state(
        self, owner: Owner, job: str, *, finished: int = 0, timeout_s: float = 0.0
    ) -> Snapshot:
        """Return the state of a job once over ``finished`` images are settled, or after a while."""

        def more() -> bool:
            states = self._images(owner, job)
            settled = sum(one.state != "waiting" for one in states.values())
            return self._closed or settled > finished or settled == len(states)

        with self._changed:
            self._changed.wait_for(more, timeout_s)
            self._expire()
            states = self._images(owner, job)
            by = {
                kind: tuple(sorted(i for i, one in states.items() if one.state == kind))
                for kind in ("waiting", "finished", "failed")
            }
            failed = {i: states[i].reason for i in by["failed"]}
            return Snapshot(by["waiting"], by["finished"], failed, self._ahead(owner))

    def answer(self, owner: Owner, job: str, image: int) -> bytes | None:
        """Return a finished answer, or None."""
        with self._changed:
            found = self._images(owner, job).get(image)
            return found.answer if found is not None and found.state == "finished" else None

    def drop(self, owner: Owner, job: str | None = None) -> None:
        """Forget a job of a client, or all of them; waiting images are not computed."""
        with self._changed:
            client = self._clients.get(owner)
            if client is None:
                return
            for name in [job] if job is not None else list(client.jobs):
                for one in client.jobs.pop(name, {}).values():
                    self._answer_bytes -= len(one.answer)
            stale = [task for task in client.queue if task.job not in client.jobs]
            client.queue = deque(task for task in client.queue if task.job in client.jobs)
            self._query_bytes -= sum(len(task.query) for task in stale)
            self._expire()
            self._changed.notify_all()

    @property
    def unfinished(self) -> int:
        """Images that wait or are being computed."""
        with self._changed:
            return sum(client.unfinished for client in self._clients.values())

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def used_bytes(self) -> tuple[int, int]:
        """Bytes of queries and of answers."""
        with self._changed:
            return self._query_bytes, self._answer_bytes

    def _settle(self, task: Task, image: _Image) -> None:
        with self._changed:
            self._query_bytes -= len(task.query)
            client = self._clients.get(task.owner)
            if client is not None:
                client.running -= 1
                known = client.jobs.get(task.job, {}).get(task.image)
                if known is not None and known.task is task:  # else dropped, perhaps sent anew
                    client.jobs[task.job][task.image] = image
                    self._answer_bytes += len(image.answer)
            self._expire()
            self._changed.notify_all()

    def _images(self, owner: Owner, job: str) -> dict[int, _Image]:
        client = self._clients.get(owner)
        return {} if client is None else client.jobs.get(job, {})

    def _somebody_waits(self) -> bool:
        return any(client.queue for client in self._clients.values())

    def _ahead(self, owner: Owner) -> int:
        """Return how many images of other clients come before this client's next one."""
        others = [c for o, c in self._clients.items() if o != owner]
        return sum(bool(c.queue) + c.running for c in others)

    def _expire(self) -> None:
        """Forget settled images that are old, and the oldest while they need too much room."""
        limit = self._clock() - self.keep_s
        settled = [entry for entry in self._every() if entry[3].state != "waiting"]
        for owner, job, image, one in sorted(settled, key=lambda entry: entry[3].changed_s):
            if one.changed_s > limit and self._answer_bytes <= self.max_bytes:
                break
            self._answer_bytes -= len(one.answer)
            del self._clients[owner].jobs[job][image]
        for owner, client in list(self._clients.items()):
            for job in [job for job, states in client.jobs.items() if not states]:
                del client.jobs[job]
            if not client.jobs and not client.unfinished:
                del self._clients[owner]

    def _every(self) -> list[tuple[Owner, str, int, _Image]]:
        return [
            (owner, job, i, one)
            for owner, client in self._clients.items()
            for job, states in client.jobs.items()
            for i, one in states.items()
        ]
