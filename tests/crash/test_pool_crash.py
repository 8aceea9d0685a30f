"""A run's seed is handed out at most once over all lives of all processes, whatever crashes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from privml.errors import Full, StorageError
from privml.protocols.mpc.correlations import pool as pool_module
from privml.protocols.mpc.correlations import used as used_module
from privml.protocols.mpc.correlations.pool import Pool, PoolWriter, RunMaterial, UsedLog
from privml.storage import fs
from privml.storage.failpoints import Kind, Op
from privml.testing.crashfs import CrashFs, Fault, Loss
from privml.testing.pools import CLIENT, SETUP, corrections_of, seed_of, write_pool

STOPS = (Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.TORN)
LOSSES = tuple(enumerate((Loss.NONE, Loss.ALL, Loss.PART, Loss.PART, Loss.PART)))
HEADER = dataclasses.replace(CLIENT, runs=7, correction_bytes=5000)
SPENT_PER_LIFE = 3


@dataclass
class World:
    """One disk with a fresh pool, and what was handed out on it."""

    folder: Path
    handed: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "client.pool"

    @property
    def used(self) -> UsedLog:
        return UsedLog(self.folder / "state" / "used")

    def disk(self, at: int = 0, fault: Fault = Fault.STOP_BEFORE, **more: object) -> CrashFs:
        scratch = self.folder / f"scratch-{len(list(self.folder.glob('scratch-*')))}"
        scratch.mkdir()
        return CrashFs(scratch, at=at, fault=fault, **more)  # type: ignore[arg-type]

    def take(self, run: RunMaterial) -> None:
        """Note what the caller of ``claim`` got, and that it is what the dealer dealt."""
        self.handed.append((run.index, run.seed))
        assert bytes(run.read(run.remaining)) == corrections_of(run.index, 5000)

    def life(self) -> None:
        """Claim a run and finish it, skip a run, claim another and leave it open."""
        with Pool.open(self.path, plan_digest=None, used=self.used) as pool:
            with pool.claim(pool.cursor) as run:
                self.take(run)
            self.take(pool.claim(pool.cursor + 1))

    def violations(self, lives: int) -> list[str]:
        """Run the pool to its end on a sound disk; return every broken promise."""
        found = []
        disk = self.disk()
        with disk.running(), Pool.open(self.path, plan_digest=None, used=self.used) as pool:
            if pool.remaining < HEADER.runs - SPENT_PER_LIFE * lives:
                found.append(f"only {pool.remaining} runs remain after {lives} lives")
            if bytes(pool.read_setup(expect=len(SETUP))) != SETUP:
                found.append("setup material changed")
            while pool.remaining:
                with pool.claim(pool.cursor) as run:
                    self.take(run)
        found += [f"run {i} twice" for i, n in Counter(i for i, _ in self.handed).items() if n > 1]
        found += [f"wrong seed of run {i}" for i, seed in self.handed if seed != seed_of(i)]
        content = self.path.read_bytes()
        found += [f"seed {i} left" for i in range(HEADER.runs) if seed_of(i) in content]
        found += [
            f"corrections {i} left"
            for i in range(HEADER.runs)
            if corrections_of(i, 5000)[:64] in content
        ]
        return found


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[[], World]:
    content = write_pool(tmp_path / "master.pool", HEADER).read_bytes()
    numbers: Iterator[int] = iter(range(1 << 20))

    def new() -> World:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / "client.pool").write_bytes(content)
        return World(folder)

    return new


def steps_of_a_life(worlds: Callable[[], World]) -> list[Op]:
    world = worlds()
    disk = world.disk()
    with disk.running():
        world.life()
    assert len(world.handed) == 2
    return disk.ops


def stops_at(op: Op) -> tuple[Fault, ...]:
    """Return the ways to stop at a step; only a write can tear."""
    return STOPS if op.kind is Kind.WRITE else STOPS[:2]


def crashed_worlds(worlds: Callable[[], World]) -> Iterator[tuple[str, World]]:
    """Yield one world for every step of a life, stopped there in every way."""
    for at, op in enumerate(steps_of_a_life(worlds), 1):
        for fault in stops_at(op):
            for salt, loss in LOSSES:
                world = worlds()
                with world.disk(at, fault, loss=loss, salt=salt).running():
                    world.life()
                    raise AssertionError("the life outlived its crash")
                yield f"{at}-{fault}-{loss}-{salt}", world


def test_claims_survive_a_stop_at_every_step(worlds: Callable[[], World]) -> None:
    assert len(steps_of_a_life(worlds)) > 20
    for label, world in crashed_worlds(worlds):
        assert world.violations(lives=1) == [], label


def test_recovery_survives_a_stop_at_each_of_its_own_steps(worlds: Callable[[], World]) -> None:
    """Crash the first life at every third step, then the second one at every step."""
    for first in range(2, len(steps_of_a_life(worlds)) + 1, 3):
        for second in range(1, 14):
            for salt, loss in LOSSES[1:3]:
                world = worlds()
                for at in (first, second):
                    with world.disk(at, Fault.STOP_AFTER, loss=loss, salt=salt).running():
                        world.life()
                assert world.violations(lives=2) == [], f"{first}-{second}-{loss}"


@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC])
def test_claims_survive_a_failing_device(worlds: Callable[[], World], fault: Fault) -> None:
    """One step fails, the process goes on in a second life, then power goes."""
    for at, _ in enumerate(steps_of_a_life(worlds), 1):
        for salt, loss in LOSSES:
            world = worlds()
            disk = world.disk(at, fault, loss=loss, salt=salt)
            with disk.running():
                expected = StorageError if fault is Fault.EIO else Full
                with pytest.raises(expected):
                    world.life()
                world.life()
                disk.power_off()
            assert world.violations(lives=2) == [], f"{at}-{loss}-{salt}"


def test_a_half_failed_claim_closes_the_pool_to_further_claims(
    worlds: Callable[[], World],
) -> None:
    for at in range(1, 9):
        world = worlds()
        with Pool.open(world.path, plan_digest=None, used=world.used) as pool:
            disk = world.disk(at, Fault.EIO)
            with disk.running():
                try:
                    pool.claim(0)
                except StorageError:
                    with pytest.raises(StorageError, match="close it and open it again"):
                        pool.claim(1)
                else:
                    assert at > disk.count
        assert world.violations(lives=1) == []


def test_a_handed_seed_is_gone_from_the_disk_even_if_power_goes_at_once(
    worlds: Callable[[], World],
) -> None:
    for salt, loss in LOSSES:
        world = worlds()
        disk = world.disk(loss=loss, salt=salt)
        with disk.running(), Pool.open(world.path, plan_digest=None, used=world.used) as pool:
            pool.claim(2)
            disk.power_off()
        content = world.path.read_bytes()
        assert [i for i in range(HEADER.runs) if seed_of(i) in content] == [3, 4, 5, 6]


def mutant_nothing_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fs.File, "sync", lambda self: None)


def mutant_log_and_cursor_after_use(patch: pytest.MonkeyPatch) -> None:
    spend = Pool._spend

    def destroy(self: Pool, index: int) -> None:
        self._live.pop(index, None)
        self._cursor = index
        spend(self, index)

    patch.setattr(Pool, "_spend", lambda self, index: setattr(self, "_cursor", index + 1))
    patch.setattr(Pool, "_destroy", destroy)


def mutant_seed_left_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pool, "_erase_seeds", lambda self, start, stop: None)


def mutant_corrections_left_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pool, "_erase_corrections", lambda self, start, stop: None)


def mutant_mark_in_the_same_sync_as_the_erasure(patch: pytest.MonkeyPatch) -> None:
    write = Pool._write_slot

    def marked(self: Pool) -> None:
        self._erased = min(self._live, default=self._cursor)
        write(self)

    patch.setattr(Pool, "_write_slot", marked)


def mutant_one_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pool_module.layout, "SLOT_OFFSETS", (pool_module.layout.SLOT_OFFSETS[0],) * 2)


def mutant_log_record_off_the_grid(patch: pytest.MonkeyPatch) -> None:
    def append(file: fs.File, record: bytes) -> None:
        file.write_at(file.size, record)
        file.sync()

    patch.setattr(used_module.fs, "durable_append", append)


@pytest.mark.parametrize(
    "mutant",
    [
        mutant_nothing_synced,
        mutant_log_and_cursor_after_use,
        mutant_seed_left_on_disk,
        mutant_corrections_left_on_disk,
        mutant_mark_in_the_same_sync_as_the_erasure,
        mutant_one_slot,
        mutant_log_record_off_the_grid,
    ],
)
def test_broken_pools_are_caught(
    worlds: Callable[[], World],
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    with monkeypatch.context() as patch:
        mutant(patch)
        for _, world in crashed_worlds(worlds):
            try:
                if world.violations(lives=1):
                    return
            except (StorageError, pool_module.CorrelationExhausted):
                return
    raise AssertionError("no crash told this broken pool from a sound one")


def deal(path: Path) -> None:
    with PoolWriter(path, HEADER) as writer:
        for index in range(HEADER.runs):
            writer.add_run(seed_of(index))
            stream = corrections_of(index, HEADER.correction_bytes)
            writer.append(stream[:100])
            writer.append(stream[100:])
        writer.append_setup(SETUP)
        writer.commit()


def test_a_stopped_dealer_leaves_a_whole_pool_or_none(tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    counter = CrashFs(tmp_path / "count")
    with counter.running():
        deal(tmp_path / "counted.pool")
    assert counter.count > 15
    for at, op in enumerate(counter.ops, 1):
        for fault in (*stops_at(op), Fault.EIO, Fault.ENOSPC):
            for salt, loss in LOSSES[: 3 if fault in STOPS else 1]:
                world = World(tmp_path / f"{at}-{fault}-{loss}")
                world.folder.mkdir()
                with world.disk(at, fault, loss=loss, salt=salt).running():
                    outcome = dealt(world.path)
                    assert outcome == {Fault.EIO: "failed", Fault.ENOSPC: "full"}[fault]
                    assert not world.path.exists()
                if not world.path.exists():
                    with world.disk().running():
                        deal(world.path)
                    assert not list(world.folder.glob(".*.part"))
                assert world.violations(lives=0) == []


def dealt(path: Path) -> str:
    try:
        deal(path)
    except Full:
        return "full"
    except StorageError:
        return "failed"
    return "done"
