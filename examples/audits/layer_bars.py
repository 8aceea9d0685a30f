"""One encoder layer on two processes: budgets, and SecretFlow SPU on the same machine in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from frame import Options, Report, absent, at_least, at_most, reported
from link_bars import LINKS, link_names, over_link
from peers.environments import SPU, PeerUnavailable, obtain
from peers.spu_client import SpuPeer
from product import BERT_LAYER, MINILM_LAYER, Measured, Product
from product_party import Model
from timing import Paired, Sample, Timing, paired

from privml.backbones import Encoded, random_batch

TOKENS = 128
BUDGET = "design budget, both parties on this machine, mutual TLS on loopback"
PEER = "SecretFlow SPU 0.9.5 semi2k"
SETTINGS = {"plain": "SPU's defaults", "tuned": "as SPU's own transformer examples set it up"}
UNITS = {
    # name: scopes of the BERT-shaped layer, budget in s, budget in MB per direction, workload
    "matmul": (("layer0.attn_out",), 0.1, 1.6, "128x768x768 with bias and truncation"),
    "gelu": (("layer0.ffn_act",), 0.25, 11.305, "128x3072"),
    "softmax": (
        ("layer0.context/max", "layer0.context/exp", "layer0.context/normalise"),
        0.4, 15.83, "12x128x128 with its maximum",
    ),
}  # fmt: skip


@dataclass
class Layer:
    """A layer under measurement and its runs so far."""

    product: Product
    batch: Encoded
    runs: list[Measured]

    def sample(self) -> float:
        """Run once and return the on-line seconds."""
        self.runs.append(self.product.run(self.batch))
        return self.runs[-1].online_s

    def offline_s(self) -> float:
        """Return the off-line seconds of one run: dealing, and expanding just before the run."""
        return self.product.deal_s + median(run.prepare_s for run in self.runs)

    def scope(self, run: Measured, names: tuple[str, ...], field: str) -> float:
        """Return a figure of a run summed over scopes."""
        return sum(float(run.scopes[name][field]) for name in names)


@contextmanager
def layer_of(model: Model, per_pool: int) -> Iterator[Layer]:
    """Start the parties of a one-layer model."""
    with Product(model, n=TOKENS, per_pool=per_pool) as product:
        batch = random_batch(product.encoder.config, rows=1, length=TOKENS, seed=2)
        yield Layer(product, batch, [])


def peer_names() -> dict[str, str]:
    """Return the bars against SPU with their targets."""
    names = {}
    for settings in SETTINGS:
        names[f"layer.minilm.online_vs_spu_{settings}"] = ">= 6 x (aim 12)"
        names[f"layer.minilm.with_offline_vs_spu_{settings}"] = ">= 3 x"
        for unit in (*UNITS, "layer_bert_base"):
            names[f"unit.{unit}.online_vs_spu_{settings}"] = ""
    return names


def layer_section(report: Report, options: Options) -> None:
    """Add ``layer.*`` and ``unit.*``."""
    repeats = options.repeats(5, 3)
    own = ["layer.minilm.online_s", "layer.minilm.MB_per_direction", "layer.minilm.flights"]
    own += ["layer.minilm.offline_s", "layer.bert_base.online_s", *link_names("layer.minilm")]
    own += [f"unit.{unit}.{what}" for unit in UNITS for what in ("online_s", "MB_per_direction")]
    with report.section("encoder layers", *own, *peer_names()):
        python, reason = _peer(report, options)
        with (
            layer_of(MINILM_LAYER, 2 * repeats + 2) as minilm,
            layer_of(BERT_LAYER, repeats + 1) as bert,
        ):
            for layer in (minilm, bert):
                layer.sample()
                layer.runs.clear()  # the first run also pays the set-up
                for _ in range(repeats):
                    layer.sample()
            _budgets(report, minilm, bert)
            for link in LINKS:
                over_link(
                    report, "layer.minilm", minilm.product, minilm.batch, link,
                    repeats=options.repeats(3, 1),
                )  # fmt: skip
            try:
                for settings in SETTINGS if python else ():
                    report.progress(f"{PEER}, {settings}")
                    _against(report, options, settings, minilm, bert, python)
            except PeerUnavailable as error:
                reason = str(error)
        for name, target in peer_names().items():
            if not report.has(name):
                report.add(absent(name, target, against=PEER, reason=reason))


def _peer(report: Report, options: Options) -> tuple[Path | None, str]:
    """Return the peer's interpreter, or why there is none."""
    if options.quick and not options.peers:
        return None, "left out by --quick; add --peers to measure it all the same"
    try:
        python = obtain(SPU, options.peer_dir, create=options.peers, progress=report.progress)
    except PeerUnavailable as error:
        return None, str(error)
    return python, ""


def _budgets(report: Report, minilm: Layer, bert: Layer) -> None:
    online = Timing(tuple(run.online_s for run in minilm.runs))
    run = minilm.runs[-1]
    claim = {"claim": str(minilm.product.plan.claim)}
    report.add(
        at_most("layer.minilm.online_s", online.median, 1.0, unit="s", aim=0.5, against=BUDGET,
                detail=online.as_dict() | claim),
        at_most("layer.minilm.MB_per_direction", max(run.sent, run.received) / 1e6, 36,
                unit="MB", against=BUDGET),
        at_most("layer.minilm.flights", run.flights, 135, aim=100, against=BUDGET),
        reported("layer.minilm.offline_s", minilm.offline_s(), unit="s",
                 against="dealer's seconds per run plus expansion at the slower party",
                 detail={"deal_s": minilm.product.deal_s, "MB": minilm.product.deal_bytes / 1e6}),
    )  # fmt: skip
    whole = Timing(tuple(run.online_s for run in bert.runs))
    report.add(reported("layer.bert_base.online_s", whole.median, unit="s", against=BUDGET,
                        detail=whole.as_dict()))  # fmt: skip
    for unit, (scopes, seconds, megabytes, what) in UNITS.items():
        taken = Timing(tuple(bert.scope(run, scopes, "seconds") for run in bert.runs))
        ways = ("payload_sent", "payload_received")
        most = max(bert.scope(bert.runs[-1], scopes, way) for way in ways)
        report.add(
            at_most(f"unit.{unit}.online_s", taken.median, seconds, unit="s",
                    against=f"design budget, {what}, inside a BERT-shaped layer",
                    detail=taken.as_dict()),
            at_most(f"unit.{unit}.MB_per_direction", most / 1e6, megabytes, unit="MB",
                    against=f"design budget, {what}"),
        )  # fmt: skip


def _against(
    report: Report, options: Options, settings: str, minilm: Layer, bert: Layer, python: Path
) -> None:
    with SpuPeer(python, settings=settings) as spu:
        against = f"{PEER}, {SETTINGS[settings]}; {spu.facts['trust']}"
        both, facts = _in_turn(spu, "layer_minilm", minilm.sample, options.repeats(5, 1))
        offline_s = minilm.offline_s()
        pairs = zip(both.theirs.samples, both.ours.samples, strict=True)
        whole = median(theirs / (ours + offline_s) for theirs, ours in pairs)
        claim = {"claim": str(minilm.product.plan.claim), "peer": facts}
        report.add(
            at_least(f"layer.minilm.online_vs_spu_{settings}", both.ratio, 6, unit="x", aim=12,
                     against=against, detail=both.as_dict() | claim),
            at_least(f"layer.minilm.with_offline_vs_spu_{settings}", whole, 3, unit="x",
                     against=against, detail={"offline_s": offline_s}),
        )  # fmt: skip
        for unit in (*UNITS, "layer_bert_base"):
            both, facts = _in_turn(spu, unit, _part(bert, unit), options.repeats(3, 1))
            report.add(reported(
                f"unit.{unit}.online_vs_spu_{settings}", both.ratio, unit="x", against=against,
                detail=both.as_dict() | {"peer": facts},
            ))  # fmt: skip


def _in_turn(
    spu: SpuPeer, case: str, ours: Sample, repeats: int
) -> tuple[Paired, dict[str, object]]:
    """Return both sides' runs of one workload, taken in turn, and the peer's facts."""
    facts = spu.prepare(case)
    return paired(ours, lambda: spu.run(case), repeats=repeats, warmup=0), facts


def _part(layer: Layer, unit: str) -> Sample:
    """Return a sample of a part of the layer, or of the whole."""

    def sample() -> float:
        online_s = layer.sample()
        return layer.scope(layer.runs[-1], UNITS[unit][0], "seconds") if unit in UNITS else online_s

    return sample
