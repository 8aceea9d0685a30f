"""A plan belongs to a model, wherever its directory lies and whatever it is called."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from privml.backbones.loader import load_encoder
from privml.errors import UntrustedArtifact
from privml.protocols import mpc
from privml.protocols.cipherprune import PruneSpec, Thresholds
from privml.protocols.mpc import plan as plan_module
from privml.protocols.mpc.fields import derived
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.runtime import checked_public
from privml.testing.checkpoints import write_checkpoint

CLASSES = ("bad", "good")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    made = write_checkpoint(tmp_path / "here", layers=2, classes=CLASSES)
    return made, shutil.copytree(made, tmp_path / "elsewhere" / "copy")


def test_a_copy_under_another_name_serves_the_same_plan(folders: tuple[Path, Path]) -> None:
    secret = Thresholds((0.007,), (0.008,), heads=2).bound_to(load_encoder(folders[0]))
    spec = mpc.Spec(prune=PruneSpec(secret))
    here, copy = (mpc.PrivateModel(load_encoder(folder), spec) for folder in folders)
    plan, other = here.plan(n=16), copy.plan(n=16)
    assert (plan.config.name, other.config.name) == ("here", "copy")
    assert plan == other
    assert plan.digest == other.digest
    assert plan.public == other.public
    assert copy.weights(plan).digest == here.weights(plan).digest
    assert checked_public(copy.public_bytes, plan).config.name == "copy"
    assert mpc.Plan.from_json(plan.to_json()).config.name == "here"  # people still see the name


def test_other_weights_shapes_and_labels_are_other_models(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    plan = mpc.PrivateModel(load_encoder(folders[0])).plan(n=16)
    for number, options in enumerate((
        {"layers": 2, "classes": CLASSES, "seed": 1}, {"layers": 3, "classes": CLASSES},
        {"layers": 2, "classes": ("bad", "fine")},
    )):  # fmt: skip
        folder = write_checkpoint(tmp_path / str(number) / "here", **options)  # type: ignore[arg-type]
        other = mpc.PrivateModel(load_encoder(folder))
        with pytest.raises(UntrustedArtifact, match="other weights or options"):
            other.weights(plan)
        with pytest.raises(UntrustedArtifact, match="not the one the plan names"):
            checked_public(other.public_bytes, plan)


def test_a_pool_serves_the_version_that_it_was_dealt_for_only(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan file of another version is the same file; what is dealt for it is not."""
    model = mpc.PrivateModel(load_encoder(folders[0]))
    now, data = model.plan(n=4).digest, model.plan(n=4).to_json()
    monkeypatch.setattr(plan_module, "PROTOCOL_VERSION", plan_module.PROTOCOL_VERSION - 1)
    before = mpc.Plan.from_json(data)
    assert before.digest != now
    mpc.deal(before, runs=1, server=tmp_path / "s.pool", client=tmp_path / "c.pool")
    monkeypatch.undo()
    for name in ("s.pool", "c.pool"):
        with pytest.raises(UntrustedArtifact, match="another version of this program"):
            mpc.Pool.open(tmp_path / name, plan_digest=mpc.Plan.from_json(data).digest,
                          used=mpc.UsedLog(tmp_path / "used"))  # fmt: skip


def test_a_plan_names_the_layout_of_its_correlations(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants of a primitive may stay what they were while its correlations change."""
    plan = mpc.PrivateModel(load_encoder(folders[0])).plan(n=4)
    before, real = plan.digest, Exp.fields
    monkeypatch.setattr(Exp, "fields", lambda self: (*real(self), derived("more", self.shape)))
    assert mpc.Plan.from_json(plan.to_json()).digest != before
