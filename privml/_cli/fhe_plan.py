"""``privml fhe plan`` and ``privml fhe compile``: the bill, then the bundles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from privml._cli import fhe_ckks, fhe_inputs
from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.errors import PrivmlError
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.calibration import Calibration, MachineKey, load_calibration
from privml.protocols.fhe.front.controls import Control
from privml.protocols.fhe.plan import plan as make_plan
from privml.protocols.fhe.planned import Machine, Plan
from privml.protocols.fhe.reliability import Disagreement, disagreement
from privml.storage import fs

if TYPE_CHECKING:
    from privml.protocols.fhe.graph import Graph

_SEEDS = range(5)
_MUCH = 0.05  # of images whose class may change: worth a warning
_CONTROLS = (Control.PIXEL, Control.MEAN_POOL, Control.SPACE_TO_DEPTH, Control.DCT)


def plan(
    out: Output, path: Path, *, p_error: float | None, exact: bool, round_to: int | None,
    calibration: Path | None, controls: bool,
) -> None:  # fmt: skip
    """Print the plan of one image; with ``controls`` also those behind other front ends."""
    if fhe_inputs.is_polynomial(path):
        fhe_ckks.refuse_options(
            p_error=p_error, exact=exact, round_to=round_to, calibration=calibration,
            controls=controls,
        )  # fmt: skip
        fhe_ckks.plan(out, path)
        return
    loaded = fhe_inputs.load(path, exact=exact)
    graph, probability = loaded.graph, fhe_inputs.p_error_of(p_error, exact=exact)
    if round_to is not None:
        graph = graph.with_rounding(round_to, exact=exact)
    machine = Machine.here(_calibration(calibration))
    found = make_plan(graph, p_error=probability, machine=machine)
    document: dict[str, object] = {"ok": True, "plan": found.to_dict()}
    rows = dict(_controls(path, probability, machine)) if controls else {}
    if controls:
        document["controls"] = {
            name: row.to_dict() if isinstance(row, Plan) else row for name, row in rows.items()
        }
    out.document(document)
    if out.mode.quiet:
        out.show(f"{found.core_s.expected:.4g}")
        return
    out.show(str(found))
    if rows:
        out.show(facts("the same blocks, untrained, behind each front end", _lines(rows)))


def compile_bundles(
    out: Output, path: Path, *, folder: Path, identity: str | None, p_error: float | None,
    exact: bool, measure: Sequence[Path], labels: str, accepted: bool,
) -> None:  # fmt: skip
    """Plan, measure disagreement where the contract needs it, compile, write both bundles."""
    if fhe_inputs.is_polynomial(path):
        fhe_ckks.refuse_options(p_error=p_error, exact=exact, measure=measure)
        fhe_ckks.make_bundles(out, path, folder=folder, identity=identity, labels=labels)
        return
    operator = fhe_inputs.identity_of(identity, why="it signs the bundles")
    if fs.exists(folder):
        raise UsageError(f"{folder} exists already; choose another folder or remove it first")
    fhe_inputs.acknowledge(accepted)
    toolkit.frontend()  # a missing toolkit is reported before minutes of work
    loaded = fhe_inputs.load(path, exact=exact, labels=labels)
    probability = fhe_inputs.p_error_of(p_error, exact=exact)
    evidence = evidence_of(out, loaded, probability, measure)
    out.progress("compiling", 0.0)
    from privml.protocols.fhe.building import build

    manifest, predicted = build(
        loaded.graph, folder, identity=operator, p_error=probability, frontend=loaded.frontend,
        labels=loaded.labels, evidence=evidence,
    )  # fmt: skip
    out.document({
        "ok": True, "program": manifest.id, "server": str(folder / "server"),
        "client": str(folder / "client"), "signer": str(operator.fingerprint),
        "bootstraps": manifest.bootstraps, "p_error": manifest.p_error,
        "contract": manifest.contract, "key_bytes": manifest.sizes.keys,
        "query_bytes": manifest.sizes.query, "answer_bytes": manifest.sizes.answer,
        "plan": predicted.to_dict(),
    })  # fmt: skip
    if out.mode.quiet:
        out.show(manifest.id)
        return
    out.show(facts("compiled", [
        ("program", manifest.id),
        ("signed by", str(operator.fingerprint)),
        ("bootstraps", f"{manifest.bootstraps:,} an image, as planned"),
        ("keys", f"{manifest.sizes.keys / 1e6:.1f} MB sent once, compressed"),
        ("messages", f"{manifest.sizes.query:,} bytes sent, {manifest.sizes.answer:,} returned"),
        ("contract", f"{manifest.contract}, p_error {manifest.p_error:.3g}"),
        ("server", str(folder / "server")),
        ("client", f"{folder / 'client'} (no weights; clients may also ask the server for it)"),
    ]))  # fmt: skip
    out.note("tell clients the program's id over a way an attacker cannot change")


def evidence_of(
    out: Output, loaded: fhe_inputs.Loaded, p_error: float, paths: Sequence[Path]
) -> Disagreement | None:
    """Return the disagreement measured on images; None if none are given."""
    if not paths:
        return None
    names, photos = fhe_inputs.read_photos(paths)
    out.progress(f"measuring disagreement on {len(names)} images", 0.0)
    images = fhe_inputs.prepared(names, photos, loaded.prepare)
    record = disagreement(loaded.graph, images, p_error=p_error, seeds=list(_SEEDS))
    out.note(f"disagreement {record.rate:.2%}, at most {record.high:.2%} ({record.images} images)")
    if record.high > _MUCH:
        out.note(
            f"warning: faults may change the class of {record.high:.0%} of images; train longer, "
            "lower --p-error, or take --exact"
        )
    if record.images < 300:
        out.note("warning: fewer than 300 images prove little; measure on more")
    return record


def _calibration(folder: Path | None) -> Calibration | None:
    if folder is None:
        return None
    found = load_calibration(folder, MachineKey.here(version=toolkit.VERSION))
    if found is None:
        raise UsageError(
            f"{folder} has no calibration of this machine; run: privml fhe calibrate --out {folder}"
        )
    return found


def _controls(path: Path, p_error: float, machine: Machine) -> Iterator[tuple[str, Plan | str]]:
    """Yield the plan, or the refusal, of the same blocks behind each front end."""
    from privml.backbones.cnn import Cnn
    from privml.backbones.cnn_saving import load_model
    from privml.backbones.quant_model import QuantModel
    from privml.protocols.fhe.lower import lower
    from privml.rng import ScienceSeed

    if path.is_file():
        raise UsageError("controls need a model folder with a front end, not a graph")
    loaded, model = fhe_inputs.load(path, exact=False), load_model(path)
    if loaded.frontend is None:
        raise UsageError("controls need a model that was trained behind a front end")
    for control in _CONTROLS:
        front = replace(loaded.frontend.front, control=control, statistics=None)
        try:
            net = Cnn(replace(model.net.spec, shape=front.shape), bits=model.bits)
            other = QuantModel(net)
            draw = ScienceSeed(0).child("controls").generator()
            other.calibrate(draw.standard_normal((32, *front.shape)))
            graph: Graph = lower(other)
            yield str(control), make_plan(graph, p_error=p_error, machine=machine)
        except PrivmlError as error:
            yield str(control), str(error)


def _lines(rows: dict[str, Plan | str]) -> list[tuple[str, str]]:
    return [
        (name, row if isinstance(row, str) else
         f"{row.tables:,} tables, {row.core_s.expected:,.4g} core-seconds")
        for name, row in rows.items()
    ]  # fmt: skip


def calibration_of(folder: Path | None) -> Calibration | None:
    """Return this machine's calibration kept in a folder; None stays None."""
    return _calibration(folder)
