"""A party's correlations during one run: expanded ahead of the query, handed out once, in order."""

from __future__ import annotations

import hmac
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from privml.errors import CorrelationExhausted, Corrupt
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.protocols.mpc.correlations.run import RunMaterial
from privml.protocols.mpc.correlations.tags import TAG_BYTES, Tagger
from privml.protocols.mpc.engine import Step
from privml.protocols.mpc.fields import Seeds, Shares, expand
from privml.protocols.mpc.primitive import Primitive, Words
from privml.rng import Csprng


class PoolSupply:
    """Correlations of one claimed run of a pool.

    Parameters
    ----------
    rank
        This party's rank.
    material
        The claimed run; destroyed by :meth:`close`.
    steps
        The plan's steps, which fix what is taken and in which order.
    opened
        W - B by name, at the client of every weight, at the server of the column vectors; the
        products that depend on it are computed ahead as well.
    prefixes
        Whether sizes depend on opened numbers: an item may then be taken smaller than planned,
        left out, or taken out of order by a lane, but never twice. What is left is destroyed.
    """

    def __init__(
        self, rank: int, material: RunMaterial, steps: Sequence[Step], *,
        opened: Mapping[str, Words] | None = None, prefixes: bool = False,
    ) -> None:  # fmt: skip
        self._rank, self._material, self._steps = rank, material, steps
        self._prefixes = prefixes
        self._opened = opened or {}
        own = Csprng(material.seed)
        self._seeds = Seeds.of_party(rank, own, None)
        self._tags = Tagger(own)
        self._ready: deque[Shares] = deque()
        self._passed: dict[int, Shares] = {}
        self._guard = threading.Lock()
        self._made = 0
        self._taken = 0

    def prepare(self, *, memory_bytes: int) -> int:
        """Expand items ahead of the query until they fill ``memory_bytes``; return the bytes."""
        used = 0
        while self._made < len(self._steps) and used < memory_bytes:
            shares = self._make()
            used += sum(a.nbytes for a in shares.values())
            self._ready.append(shares)
        return used

    def _make(self) -> Shares:
        item, prim = self._made, self._steps[self._made].primitive
        self._made += 1
        read = self._read if self._rank == 1 else None
        shares = expand(prim.fields(), item, self._rank, self._seeds, read)
        if isinstance(prim, Affine) or (self._rank == 1 and isinstance(prim, Linear)):
            ahead = prim.prepare(shares, self._opened[prim.weight])
            shares = {name: a for name, a in shares.items() if name not in prim.SPENT}
            shares["z1"] = ahead
        return shares

    def _read(self, nbytes: int) -> memoryview:
        """Read corrections and check the dealer's tag behind them."""
        data = self._material.read(nbytes)
        if not hmac.compare_digest(self._material.read(TAG_BYTES), self._tags.next(data)):
            raise Corrupt("the pool's corrections are damaged; the run is spent, deal a new pool")
        return data

    def take(self, prim: Primitive, item: int) -> Shares:
        """Return the shares of the next item; anything else than the plan allows is refused."""
        with self._guard:
            if not self._planned(prim, item):
                raise CorrelationExhausted(
                    f"item {item} ({prim.name}) is not what the plan has next; nothing was handed "
                    "out"
                )
            while self._taken <= item:
                at = self._taken
                self._passed[at] = self._next()
            shares = self._passed.pop(item)
        return self._steps[item].primitive.cut(prim, shares)

    def _planned(self, prim: Primitive, item: int) -> bool:
        if not 0 <= item < len(self._steps):
            return False
        planned = self._steps[item].primitive
        if self._prefixes:
            return (item >= self._taken or item in self._passed) and planned.covers(prim)
        return item == self._taken and planned == prim

    def forget_passed(self) -> None:
        """Destroy what was passed over and will not be taken any more."""
        self._passed.clear()

    def _next(self) -> Shares:
        self._taken += 1
        return self._ready.popleft() if self._ready else self._make()

    def close(self) -> None:
        """Destroy what is left, in memory and on disk; nothing is handed out any more."""
        with self._guard:
            self._made = self._taken = len(self._steps)
            self._ready.clear()
            self._passed.clear()
        self._material.close()
