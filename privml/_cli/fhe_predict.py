"""Verbs that run both sides in one process: ``privml fhe predict``, ``calibrate``, ``bench``."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privml._cli import fhe_ckks, fhe_inputs
from privml._cli.fhe_plan import calibration_of, evidence_of
from privml._cli.fhe_scores import documents, table
from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.errors import ClaimTooWeak
from privml.protocols.fhe import reference
from privml.protocols.fhe.costs import MAX_COST_BITS
from privml.protocols.fhe.entry import Answer, ImageSpec, Mode
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.plan import plan as make_plan
from privml.protocols.fhe.planned import SHARE_RESULTS, Machine
from privml.storage import fs

if TYPE_CHECKING:
    from privml.protocols.fhe.graph import Graph
    from privml.protocols.fhe.nodes import Ints
    from privml.protocols.fhe.reliability import Disagreement

_LOCAL = "LOCAL: client and server in one process; nobody's image is protected by this run"


def run(
    out: Output, path: Path, photos: Sequence[Path], *, mode: str, p_error: float | None,
    exact: bool, measure: Sequence[Path], labels: str, accepted: bool,
) -> None:  # fmt: skip
    """Print the scores of images in one of the three modes."""
    if fhe_inputs.is_polynomial(path):
        fhe_ckks.refuse_options(p_error=p_error, exact=exact, measure=measure)
        fhe_ckks.predict(out, path, photos, mode=mode, labels=labels)
        return
    if mode != Mode.CLEAR:
        fhe_inputs.acknowledge(accepted)
    loaded = fhe_inputs.load(path, exact=exact, labels=labels)
    names, contents = fhe_inputs.read_photos(photos)
    images = fhe_inputs.prepared(names, contents, loaded.prepare)
    probability = fhe_inputs.p_error_of(p_error, exact=exact)
    if mode == Mode.EXECUTE:
        evidence = evidence_of(out, loaded, probability, measure)
        _require_execute(loaded.graph, probability, evidence, how="--measure IMAGES")
    start = time.monotonic()
    answer = _answer(out, loaded.graph, images, Mode(mode), probability)
    results = documents(names, answer, loaded.labels)
    out.document({
        "ok": True, "local": True, "mode": mode, "label": answer.label, "results": results,
        "seconds": round(time.monotonic() - start, 3), "share_results": SHARE_RESULTS,
        "licence": NOTICE if mode != Mode.CLEAR else None,
    })  # fmt: skip
    out.show(table(results, quiet=out.mode.quiet))
    out.detail(facts("run", [("mode", answer.label), ("where", _LOCAL)]))


def calibrate(
    out: Output, *, folder: Path, p_error: float, bits: str, seconds: float, accepted: bool
) -> None:
    """Measure tables and keep the costs in a folder."""
    widths = _widths(bits)
    fhe_inputs.acknowledge(accepted)
    from privml.protocols.fhe.measuring import measure

    found = measure(p_error=p_error, bits=widths, budget_s=seconds or None, progress=out.progress)
    fs.ensure_dir(folder)
    path = found.save(folder)
    points = [
        {"bits": p.bits, "ms": p.ms, "ms_low": p.ms_low, "ms_high": p.ms_high,
         "key_mb": p.keys_bytes / 1e6, "key_loaded_mb": p.keys_loaded_bytes / 1e6}
        for p in found.points
    ]  # fmt: skip
    left_out = [width for width in widths if width not in {p.bits for p in found.points}]
    out.document({"ok": True, "local": True, "file": str(path), "p_error": p_error,
                  "points": points, "left_out": left_out})  # fmt: skip
    spans = [f"{p.ms:.1f} ms ({p.ms_low:.1f} to {p.ms_high:.1f}) a table" for p in found.points]
    rows = [
        (f"{p.bits} bits", f"{span}, keys {p.keys_bytes / 1e6:.0f} MB")
        for p, span in zip(found.points, spans, strict=True)
    ]
    out.show(facts(f"tables on {found.machine.processor}, LOCAL", [*rows, ("file", str(path))]))
    if left_out:
        words = ", ".join(map(str, left_out))
        out.note(f"{words} bits: not measured within {seconds:g} s, plans scale the others; "
                 "--seconds 0 measures all")  # fmt: skip


def bench(
    out: Output, path: Path, photos: Sequence[Path], *, images: int, p_error: float | None,
    exact: bool, calibration: Path | None, accepted: bool,
) -> None:  # fmt: skip
    """Compare all modes with each other and the encrypted run with the plan."""
    if fhe_inputs.is_polynomial(path):
        fhe_ckks.refuse_options(p_error=p_error, exact=exact, calibration=calibration)
        fhe_ckks.bench(out, path, photos)
        return
    fhe_inputs.acknowledge(accepted)
    loaded = fhe_inputs.load(path, exact=exact)
    probability = fhe_inputs.p_error_of(p_error, exact=exact)
    names, contents = fhe_inputs.read_photos(photos)
    every = fhe_inputs.prepared(names, contents, loaded.prepare)
    evidence = evidence_of(out, loaded, probability, photos)  # on the very images of the bench
    predicted = make_plan(
        loaded.graph, p_error=probability, machine=Machine.here(calibration_of(calibration)),
        evidence=evidence,
    )  # fmt: skip
    predicted.require_execute()
    few = every[:images]
    from privml.protocols.fhe.circuits import Circuit

    with ExitStack() as stack:
        start = _cpu_s()
        circuit = stack.enter_context(Circuit(loaded.graph, p_error=probability))
        compile_s, start = _cpu_s() - start, _cpu_s()
        client, server = circuit.client(), stack.enter_context(circuit.server())
        keys = server.load_keys(client.keygen())
        keygen_s = _cpu_s() - start
        queries, times, answers = client.encrypt(few), [], []
        for done, query in enumerate(queries):
            out.progress("encrypted images", done / len(queries))
            start = _cpu_s()
            answers.append(server.run(query, keys))
            times.append(_cpu_s() - start)
        executed = client.decrypt(answers)
        simulated = circuit.run(every, mode=Mode.SIMULATE)
        clear = circuit.run(every, mode=Mode.CLEAR)
    median = sorted(times)[len(times) // 2]
    agree = int((executed.classes == clear.classes[: len(few)]).sum())
    document: dict[str, Any] = {
        "ok": True, "local": True, "images": len(few), "core_s": times, "core_s_median": median,
        "planned_core_s": predicted.core_s.expected, "ratio": median / predicted.core_s.expected,
        "compile_core_s": compile_s, "keygen_core_s": keygen_s,
        "bootstraps": circuit.report.total_bootstraps, "planned_tables": predicted.tables,
        "executed_agree": agree, "simulated_images": len(every),
        "simulated_agree": int((simulated.classes == clear.classes).sum()),
        "key_bytes": circuit.report.key_bytes, "query_bytes": circuit.report.query_bytes,
        "answer_bytes": circuit.report.answer_bytes,
    }  # fmt: skip
    out.document(document)
    ran = f"{median:.2f} core-seconds an image (median of {len(few)})"
    same = f"{document['simulated_agree']} of {len(every)} simulated"
    rows = [
        ("encrypted", f"{ran}, planned {predicted.core_s.expected:.2f}"),
        ("bootstraps", f"{document['bootstraps']:,} compiled, {predicted.tables:,} tables planned"),
        ("agreement", f"{agree} of {len(few)} encrypted, {same}, with clear integers"),
        ("set-up", f"{compile_s:.1f} core-seconds to compile, {keygen_s:.1f} for keys"),
    ]
    out.show(facts("bench, LOCAL", rows))


def _require_execute(
    graph: Graph, p_error: float, evidence: Disagreement | None, *, how: str
) -> None:
    """Refuse what a plan refuses, for the same reason, before anything is compiled."""
    predicted = make_plan(graph, p_error=p_error, evidence=evidence)
    try:
        predicted.require_execute()
    except ClaimTooWeak as error:
        raise ClaimTooWeak(f"{error}: pass {how}, or --exact") from error


def _answer(out: Output, graph: Graph, images: Ints, mode: Mode, p_error: float) -> Answer:
    node = graph.input
    checked = ImageSpec(node.shape, node.low, node.high).check(images)
    if mode is Mode.CLEAR:
        integers = reference.run(graph, checked)
        return Answer(scores=graph.scores(integers), integers=integers, mode=mode)
    out.progress("compiling", 0.0)
    from privml.protocols.fhe.circuits import Circuit

    with Circuit(graph, p_error=p_error) as circuit:
        out.progress(f"running, {mode}", 0.0)
        return circuit.run(checked, mode=mode)


def _widths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise UsageError(f"widths are numbers with commas, like 2,3,4, not {text!r}") from error
    if len(set(found)) != len(found) or not all(1 <= width <= MAX_COST_BITS for width in found):
        raise UsageError(f"widths are different numbers from 1 to {MAX_COST_BITS}, not {text}")
    return found


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
