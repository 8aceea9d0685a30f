"""Act of ``privml demo``: wrong labels in a real table are found, and the records worth most."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from privml._cli.output import Output
from privml._cli.tables import facts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privml.valuation.problem import Problem
    from privml.valuation.result import ValuationResult

TRAIN: Final = 300
HELD: Final = 135
FLIPPED: Final = 0.2
INSPECTED: Final = 0.25
WALKS: Final = 60_000
TOP: Final = 10
PER_RECORD: Final = 20
_SHOWN: Final = 5
_SEED: Final = 8


def find_wrong_labels(out: Output) -> dict[str, Any]:
    """Flip labels of a real table, value every record, look at the least, find the best, show."""
    found = _measure(out)
    _show(out, found)
    return found


def _measure(out: Output) -> dict[str, Any]:
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    from privml.rng import ScienceSeed
    from privml.valuation import MaxEvaluations, Problem, RidgeUtility, Shapley
    from privml.valuation.topm import TopM

    table = load_breast_cancer()
    generator = ScienceSeed(_SEED).child("demo").generator()
    order = generator.permutation(len(table.target))
    train, held = order[:TRAIN], order[TRAIN : TRAIN + HELD]
    unseen = order[TRAIN + HELD :]
    middle, spread = table.data[train].mean(axis=0), table.data[train].std(axis=0)
    X, truth = (table.data - middle) / spread, table.target_names[table.target]
    wrong = np.sort(generator.permutation(TRAIN)[: round(FLIPPED * TRAIN)])
    labels = truth[train].copy()
    names = {str(name) for name in table.target_names}
    labels[wrong] = [(names - {str(label)}).pop() for label in labels[wrong]]
    ids = [f"patient-{k + 1:03d}" for k in train]
    problem = Problem.of(X[train], labels, X[held], truth[held], ids=ids)
    utility = RidgeUtility(metric="margin")

    out.progress("value every record", 0.0)
    began = time.perf_counter()
    values = Shapley(utility, stopping=MaxEvaluations(WALKS), random_state=1, round_units=8)
    result = values.fit_problem(problem).result_
    valued = time.perf_counter()
    looked = result.bottom(round(INSPECTED * TRAIN))
    hits = np.isin(looked, wrong)
    out.progress("find the records worth most", 0.0)
    best = TopM(TOP, utility=utility, budget=f"{PER_RECORD}n", random_state=1)
    top = best.fit_problem(problem).result_
    ended = time.perf_counter()
    members = [] if top.members is None else top.members.tolist()
    test = Problem.of(X[train], labels, X[unseen], truth[unseen], ids=ids)
    before, after = _accuracy(test, looked)
    return {
        "table": "breast cancer, Wisconsin (scikit-learn)",
        "records": TRAIN,
        "held_out": HELD,
        "flipped": len(wrong),
        "evaluations": result.evaluations,
        "value_s": valued - began,
        "inspected": len(looked),
        "found": int(hits.sum()),
        "recall": float(hits.sum() / len(wrong)),
        "by_chance": len(looked) / TRAIN,
        "efficiency_residual": result.efficiency_residual,
        "accuracy_before": before,
        "accuracy_without": after,
        "unseen": len(unseen),
        "least": _players(result, looked[:_SHOWN].tolist(), labels, truth[train]),
        "top_m": TOP,
        "top_evaluations": top.evaluations,
        "top_s": ended - valued,
        "eps": top.eps_certificate,
        "certificate": top.certificate_kind,
        "top_flipped": int(np.isin(members, wrong).sum()),
        "top": _players(top, members, labels, truth[train]),
        "result_digest": result.digest(),
    }  # fmt: skip


def _accuracy(test: Problem, gone: NDArray[np.int64]) -> tuple[float, float]:
    """Return the accuracy on rows nobody has seen, with all records and without some."""
    import numpy as np

    from privml.valuation import RidgeUtility

    game = RidgeUtility().open(test)
    everybody = np.arange(test.players)
    found = game.score([everybody, np.setdiff1d(everybody, gone)])
    return float(found[0]), float(found[1])


def _players(
    result: ValuationResult, chosen: list[int], labels: Sequence[str], truth: Sequence[str]
) -> list[dict[str, Any]]:
    chance = result.membership_prob
    return [
        {
            "id": str(result.ids[at]),
            "label": str(labels[at]),
            "diagnosed": str(truth[at]),
            "value": float(result.values[at]),
            "ci": [float(result.ci_low[at]), float(result.ci_high[at])],
            **({} if chance is None else {"membership_prob": float(chance[at])}),
        }
        for at in chosen
    ]


def _show(out: Output, found: Mapping[str, Any]) -> None:
    models = f"{found['evaluations']} models in {found['value_s']:.2f} s"
    out.detail(
        facts("records", [
            ("table", f"{found['table']}: {found['records']} records to be valued"),
            ("wrong", f"{found['flipped']} labels flipped at random; nobody tells the method"),
            ("valued", f"{models}, scored on {found['held_out']} other records"),
        ])
    )  # fmt: skip
    share = found["inspected"] / found["records"]
    hits = f"{found['found']} of {found['flipped']} wrong labels"
    gain = f"from {found['accuracy_before']:.1%} to {found['accuracy_without']:.1%}"
    search = f"{found['top_evaluations']} models in {found['top_s']:.2f} s"
    best = f"within {found['eps']:.4f} of the best {found['top_m']} ({found['certificate']})"
    out.show(
        facts("wrong labels", [
            ("inspect", f"the {found['inspected']} records of least value ({share:.0%})"),
            ("found", f"{hits} ({found['recall']:.0%}; {found['by_chance']:.0%} by chance)"),
            ("without", f"these, accuracy on {found['unseen']} unseen records goes {gain}"),
            *((one["id"], _line(one)) for one in found["least"]),
        ]),
        facts(f"the {found['top_m']} records worth most", [
            ("certificate", f"{best}, {search}"),
            ("wrong labels", f"{found['top_flipped']} among them"),
            *((one["id"], _line(one)) for one in found["top"]),
        ]),
    )  # fmt: skip


def _line(one: Mapping[str, Any]) -> str:
    low, high = one["ci"]
    text = f"{one['value']:+.4f} ({low:+.4f} to {high:+.4f})"
    if "membership_prob" in one:
        return f"{text}, P(in the top) {one['membership_prob']:.2f}"
    flipped = one["label"] != one["diagnosed"]
    return f"{text}, labelled {one['label']}: {'WRONG' if flipped else 'right'}"
