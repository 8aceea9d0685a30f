"""Reports of valuations: escaped, self-contained, honest about what is not known."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from privml.backbones.digests import canonical_json
from privml.errors import ParameterError
from privml.report import Page, Series, bars_png, curves_png, distribution_png
from privml.valuation import MaxEvaluations, Problem, RidgeUtility, Shapley
from privml.valuation.errors import RunMismatch, SettingError
from privml.valuation.report import (
    INCENTIVES,
    Extras,
    compare,
    csv_text,
    duplicates,
    html_report,
    json_document,
    outcome_digest,
    pricing,
    removal_curves,
    run_record,
)
from privml.valuation.report.equal_rows import leaked_rows
from privml.valuation.report.export import neutral
from privml.valuation.report.payments import paid
from privml.valuation.result import ValuationResult

HOSTILE = '<script>alert(1)</script>"><img src=http://evil/x onerror=1>'
pytest.importorskip("matplotlib")


def made(values: list[float], stderr: list[float] | None = None, **more: object) -> ValuationResult:
    found = np.array(values, dtype=np.float64)
    error = np.zeros(len(found)) if stderr is None else np.array(stderr, dtype=np.float64)
    fields: dict[str, object] = {
        "ids": tuple(f"p{k}" for k in range(len(found))),
        "ci_low": found - 2 * error,
        "ci_high": found + 2 * error,
        "counts": np.full(len(found), 9, dtype=np.int64),
        "truncated_counts": np.zeros(len(found), dtype=np.int64),
        "evaluations": 10,
        "rows_trained": 100,
        "seconds": 1.0,
        "status": "budget",
        "stop_reason": "10 evaluations",
        "target": "shapley",
        "method": "Antithetic",
        "spec_digest": "s",
        "data_digest": "d",
        "seeds": ("01",),
        "versions": {"numpy": "2"},
    }
    return ValuationResult(values=found, stderr=error, **{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def valued() -> tuple[Problem, ValuationResult]:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(60, 4))
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    y[:8] ^= 1
    x[41], y[41] = x[40], 1 - y[40]
    x[43], y[43] = x[42], y[42]
    held = generator.normal(size=(80, 4))
    held[0] = x[50]
    truth = (held[:, 0] + held[:, 1] > 0).astype(int)
    problem = Problem.of(x, y, held, truth)
    method = Shapley(RidgeUtility(), stopping=MaxEvaluations(12_000), round_units=8)
    return problem, method.fit_problem(problem).result_


# ------------------------------------------------------------------ page


def test_a_page_holds_everything_and_escapes_everything(
    valued: tuple[Problem, ValuationResult],
) -> None:
    problem, result = valued
    hostile = replace(result, ids=tuple(f"{HOSTILE}{k}" for k in range(60)), stop_reason=HOSTILE)
    game = RidgeUtility().open(problem)
    sources = hostile.by_group([f"{HOSTILE}$x_{k % 3}" for k in range(60)])
    page = html_report(
        hostile,
        Extras(
            columns={HOSTILE: [HOSTILE] * 60},
            curves=removal_curves(hostile, game, points=4),
            curves_on=HOSTILE,
            sources=sources,
            duplicates=duplicates(replace(problem, row_ids=hostile.ids)),
            leaked=[HOSTILE],
            prices=pricing(sources, budget=100.0),
            trace={"error": [Series(HOSTILE, np.array([1.0, 2.0]), np.array([0.2, 0.1]))]},
            others={HOSTILE: compare(hostile, hostile)},
            facts=[(HOSTILE, HOSTILE)],
        ),
        title=HOSTILE,
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    tags = re.findall(r"<(img|link|iframe|object|embed|a|form|base|video|svg)\b([^>]*)>", page)
    assert {name for name, _ in tags} == {"img"}
    assert all('src="data:image/png;base64,' in rest for _, rest in tags)
    assert all("onerror" not in rest.split('src="data')[0].split('alt="')[0] for _, rest in tags)
    assert "default-src 'none'" in page
    assert page.count("<img") == 5
    assert INCENTIVES in page
    assert outcome_digest(hostile) in page


def test_a_page_without_known_values(valued: tuple[Problem, ValuationResult]) -> None:
    nothing = np.full(60, np.nan)
    empty = replace(
        valued[1], values=nothing, stderr=nothing, ci_low=nothing, ci_high=nothing,
        status="interrupted",
    )  # fmt: skip
    page = html_report(empty)
    assert "No value is known yet" in page
    assert "Partial result" in page
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)


def test_the_answer_of_a_top_m_run_is_shown() -> None:
    top = made(
        [0.3, 0.1, 0.2], [0.1] * 3, members=np.array([0, 2]), eps_certificate=0.05,
        membership_prob=np.array([0.9, 0.2, 0.9]), certificate_kind="nominal",
        trace={"eps": np.array([0.2, 0.05]), "evaluations": np.array([5.0, 10.0])},
    )  # fmt: skip
    page = html_report(top)
    assert "within 0.05 of the best; nominal" in page
    assert "P(in the answer)" in page
    assert page.count("<img") == 2


def test_figures_refuse_nothing_and_take_many() -> None:
    with pytest.raises(ParameterError, match="no value"):
        distribution_png(np.array([np.nan]), np.array([np.nan]), np.array([np.nan]))
    with pytest.raises(ParameterError, match="at least one"):
        curves_png([], x="x", y="y")
    with pytest.raises(ParameterError, match="at least one"):
        bars_png([], np.zeros(0), np.zeros(0), np.zeros(0), x="x")
    many = np.linspace(-1, 1, 1_000)
    assert distribution_png(many, many - 1, many + 1).startswith(b"\x89PNG")
    odd = ["$\\frac{", "\x00\n", "ж" * 90]
    assert bars_png(odd, np.ones(3), np.zeros(3), np.ones(3) * 2, x="x").startswith(b"\x89PNG")


def test_a_page_shows_unknown_numbers_as_a_dash() -> None:
    page = Page("t").table(["a", "b"], [["x", float("nan")], ["y", 2]]).render()
    assert "–" in page
    assert '<td class="n">2</td>' in page


# ------------------------------------------------------------------ exports


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\tx", "\rx", "  =1"])
def test_formulas_are_neutralised(text: str) -> None:
    assert neutral(text) == f"'{text}"


def test_csv_keeps_digits_and_leaves_unknown_cells_empty() -> None:
    found = made([1 / 3, float("nan"), -0.25], ids=("=cmd|' /C calc'!A0", 7, 'b,"c"\nd'))
    rows = list(csv.DictReader(io.StringIO(csv_text(found, columns={"@l": ["-x", "y", "z"]}))))
    assert rows[0]["id"] == "'=cmd|' /C calc'!A0"
    assert rows[0]["'@l"] == "'-x"
    assert float(rows[0]["value"]) == 1 / 3
    assert rows[1]["value"] == ""
    assert rows[1]["id"] == "7"
    assert rows[2]["value"] == "-0.25"
    assert rows[2]["id"] == 'b,"c"\nd'
    assert rows[0]["observations"] == "9"


def test_json_has_no_nan() -> None:
    document = json_document(made([1.0, float("nan")]))
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again["values"] == [1.0, None]
    assert again["efficiency_residual"] is None
    assert again["ids"] == ["p0", "p1"]


def test_records_are_canonical_and_say_nothing_of_time_or_names() -> None:
    one = made([1.0, 2.0])
    record = run_record(one, kind="run", spec={"run": {"seed": 1}}, inputs=[{"name": "t.csv"}])
    later = replace(one, seconds=99.0, trace={"seconds": np.ones(3)})
    assert run_record(later, kind="run", spec={"run": {"seed": 1}}, inputs=[{"name": "t.csv"}]) == (
        record
    )
    assert canonical_json(json.loads(record)) == record
    assert b"p0" not in record
    for change in ({"values": one.values + 1e-16}, {"evaluations": 11}, {"ids": ("p1", "p0")}):
        other = replace(one, **change)  # type: ignore[arg-type]
        same = change.get("values") is not None and bool((other.values == one.values).all())
        assert (run_record(other, kind="run", spec={}) == run_record(one, kind="run", spec={})) == (
            same
        )


# ------------------------------------------------------------------ prices


def test_the_rule_pays_the_budget_by_positive_parts() -> None:
    prices = pricing(made([0.3, 0.1, -0.2, 0.0]), budget=100.0)
    np.testing.assert_allclose(prices.price, [75, 25, 0, 0])
    np.testing.assert_allclose(prices.price_low, prices.price)  # exact values: no range
    assert prices.equal == 25.0
    assert prices.warning == INCENTIVES
    floored = pricing(made([0.3, 0.1, -0.2, 0.0]), budget=100.0, floor=5.0)
    np.testing.assert_allclose(floored.price, [65, 25, 5, 5])
    assert paid(np.array([-1.0, -2.0]), budget=10.0, floor=1.0).tolist() == [1.0, 1.0]


def test_uncertainty_is_carried_through() -> None:
    prices = pricing(made([0.3, 0.1, 0.0], [0.01, 0.05, 0.1]), budget=90.0, random_state=4)
    assert (prices.price_low < prices.price).tolist() == [True, True, False]
    assert (prices.price_high > prices.price).tolist() == [True, True, True]
    assert prices.unpaid_prob[0] == 0.0
    assert prices.unpaid_prob[2] == pytest.approx(0.5, abs=0.05)
    again = pricing(made([0.3, 0.1, 0.0], [0.01, 0.05, 0.1]), budget=90.0, random_state=4)
    np.testing.assert_array_equal(prices.price_low, again.price_low)


@pytest.mark.parametrize(
    ("budget", "floor"), [(0.0, 0.0), (-1.0, 0.0), (float("inf"), 0.0), (10.0, 6.0), (10.0, -1.0)]
)
def test_prices_that_cannot_be(budget: float, floor: float) -> None:
    with pytest.raises(SettingError):
        pricing(made([1.0, 2.0]), budget=budget, floor=floor)


def test_unknown_values_have_no_price() -> None:
    with pytest.raises(SettingError, match="unknown"):
        pricing(made([1.0, float("nan")]), budget=1.0)


# ------------------------------------------------------------------ curves, duplicates, comparison


def test_curves_tell_a_ranking_from_its_reverse(valued: tuple[Problem, ValuationResult]) -> None:
    problem, result = valued
    curves = {c.name: c for c in removal_curves(result, RidgeUtility().open(problem))}
    assert (
        curves["remove worst first"].score[2:].mean() > curves["remove best first"].score[2:].mean()
    )
    assert curves["add best first"].score[1:].mean() > curves["add worst first"].score[1:].mean()
    assert curves["remove at random"].low is not None
    first = [float(c.score[0]) for name, c in curves.items() if name.startswith("remove")]
    assert first == pytest.approx([first[0]] * 3)
    with pytest.raises(SettingError, match="players"):
        removal_curves(made([1.0]), RidgeUtility().open(problem))


def test_duplicates_and_rows_on_both_sides(valued: tuple[Problem, ValuationResult]) -> None:
    problem, _ = valued
    found = duplicates(problem)
    assert [(group.rows, group.conflict) for group in found] == [
        ((40, 41), True),
        ((42, 43), False),
    ]
    assert leaked_rows(problem) == (50,)


def test_comparisons() -> None:
    a, b = made([1.0, 2.0, 3.0, 4.0, 5.0]), made([1.0, 2.0, 3.0, 5.0, 4.0])
    same = compare(a, a)
    assert (same.spearman, same.top, same.bottom, same.largest_z) == (1.0, 1.0, 1.0, 0.0)
    other = compare(a, b, m=1)
    assert other.spearman == pytest.approx(0.9)
    assert (other.top, other.bottom) == (0.0, 1.0)
    assert np.isnan(compare(a, replace(b, data_digest="x")).largest_z)
    noisy = compare(made([1.0, 2.0], [0.3, 0.4]), made([1.5, 2.0], [0.4, 0.3]))
    assert noisy.largest_z == pytest.approx(1.0)
    assert np.isnan(compare(made([1.0, 1.0]), made([1.0, 2.0])).spearman)
    with pytest.raises(RunMismatch):
        compare(a, replace(b, ids=("a", "b", "c", "d", "e")))
    with pytest.raises(SettingError):
        compare(a, b, m=9)
