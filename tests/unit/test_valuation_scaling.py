"""Scaling laws: the published raw tables, intervals that hold, plans within the budget."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.scaling import ExtrapolationWarning, ScalingLaw, saturation

SIZES = [1, 2, 4, 8, 16, 32]
DEMONSTRATIONS = [64, 100, 200, 400, 800, 1600, 3200, 6400]
POUR_SITES = [1.3, 3.325, 4.475, 6.2, 8, 8.6]
POUR_DEMONSTRATIONS = [4.35, 6.15, 6.875, 7.025, 6.975, 7.2, 7.125, 6.525]
MOUSE_DEMONSTRATIONS = [1.725, 3.025, 3.3, 3.775, 3.975, 3.8, 3.875, 3.8]
# Raw scores of Hu et al. (ICLR 2025), largest score, and a, b, r of ln gap on ln x.
FIXTURE = {
    "pour, sites": (SIZES, POUR_SITES, 9, 1.17983, -0.84401, -0.96001),
    "mouse, sites": (
        SIZES,
        [1.3, 2.475, 3.625, 3.6, 4.45, 5.2],
        6,
        0.82678,
        -0.46611,
        -0.96596,
    ),
    "mouse, pairs": (
        SIZES,
        [0.75, 0.875, 2.325, 3.35, 4.75, 5.525],
        6,
        1.26269,
        -0.68315,
        -0.94197,
    ),
    "pour, demonstrations": (
        DEMONSTRATIONS,
        POUR_DEMONSTRATIONS,
        9,
        0.55537,
        -0.11827,
        -0.62111,
    ),
    "mouse, demonstrations": (
        DEMONSTRATIONS,
        MOUSE_DEMONSTRATIONS,
        6,
        0.90702,
        -0.12131,
        -0.79713,
    ),
}
PUBLISHED = {
    "pour, sites": (1.180, -0.844, -0.960),
    "mouse, sites": (0.827, -0.466, -0.966),
    "mouse, pairs": (1.263, -0.683, -0.942),
}


def pour() -> ScalingLaw:
    return ScalingLaw.fit(SIZES, POUR_SITES, max_score=9)


def exact(a: float = 0.8, b: float = -0.5, top: float = 1.0) -> ScalingLaw:
    x = np.array(SIZES, dtype=float)
    return ScalingLaw.fit(x, top * (1 - a * x**b), max_score=top)


@pytest.mark.parametrize("series", FIXTURE)
def test_raw_tables_give_the_laws(series: str) -> None:
    x, score, top, *want = FIXTURE[series]
    law = ScalingLaw.fit(x, score, max_score=top)
    np.testing.assert_allclose([law.a, law.b, law.r], want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("series", PUBLISHED)
def test_published_laws_to_three_digits(series: str) -> None:
    x, score, top, *_ = FIXTURE[series]
    law = ScalingLaw.fit(x, score, max_score=top)
    assert (round(law.a, 3), round(law.b, 3), round(law.r, 3)) == PUBLISHED[series]


def test_pairs_read_with_the_other_task_s_scale_are_no_published_law() -> None:
    x, score, _, *want = FIXTURE["mouse, pairs"]
    law = ScalingLaw.fit(x, score, max_score=9)
    assert abs(law.a - want[0]) > 0.1 or abs(law.b - want[1]) > 0.1


@pytest.mark.parametrize("method", ["ols", "nls", "binomial"])
@pytest.mark.parametrize("top", [1.0, 6.0])
def test_every_method_recovers_an_exact_law(method: str, top: float) -> None:
    x = np.array(SIZES, dtype=float)
    trials = np.full(6, 1e6) if method == "binomial" else None
    score = top * (1 - 0.8 * x**-0.5)
    law = ScalingLaw.fit(x, score, max_score=top, method=method, trials=trials)
    np.testing.assert_allclose([law.a, law.b], [0.8, -0.5], atol=1e-5)
    np.testing.assert_allclose(law.predict(x), 0.8 * x**-0.5, atol=1e-5)
    np.testing.assert_allclose(law.predict_score(x), score, atol=1e-4)


def test_nls_weighs_large_gaps_and_ols_small_ones() -> None:
    x = np.array(SIZES, dtype=float)
    gap = 0.8 * x**-0.5
    gap[-1] *= 0.2
    by_log = ScalingLaw.fit(x, 1 - gap, max_score=1)
    by_gap = ScalingLaw.fit(x, 1 - gap, max_score=1, method="nls")
    assert abs(by_gap.b + 0.5) < 0.5 * abs(by_log.b + 0.5)


def test_binomial_fit_is_the_maximum_of_the_likelihood() -> None:
    x, trials = np.array(SIZES, dtype=float), np.array([20, 20, 20, 40, 40, 40])
    wins = np.array([3, 6, 11, 28, 33, 40])  # nothing failed at 32
    law = ScalingLaw.fit(x, wins / trials, max_score=1, method="binomial", trials=trials)

    def likelihood(log_a: float, b: float) -> float:
        gap = np.exp(log_a + b * np.log(x))
        if (gap >= 1).any():
            return -np.inf
        return float(((trials - wins) * np.log(gap) + wins * np.log1p(-gap)).sum())

    best = likelihood(np.log(law.a), law.b)
    for da in (-1e-3, 0, 1e-3):
        for db in (-1e-3, 0, 1e-3):
            assert likelihood(np.log(law.a) + da, law.b + db) <= best + 1e-9


def test_binomial_fit_on_the_edge_of_gap_one() -> None:
    law = ScalingLaw.fit(
        [1, 2, 4, 8], [0, 0.25, 0.6, 0.9], max_score=1, method="binomial", trials=20
    )
    assert law.a == pytest.approx(1, abs=1e-6)
    assert -1.2 < law.b < -0.5


@pytest.mark.parametrize(
    ("x", "score", "others", "word"),
    [
        ([1, 2, 4], [0.5, 0.7, 1.0], {}, "binomial"),
        ([1, 2, 4], [0.5, 0.7, 1.1], {}, "max_score"),
        ([4], [0.5], {}, "two"),
        ([4, 4, 4], [0.5, 0.6, 0.7], {}, "two"),
        ([0, 2], [0.5, 0.7], {}, "positive"),
        ([1, 2], [0.5, float("nan")], {}, "finite"),
        ([1, 2], [0.5], {}, "length"),
        ([1, 2], [1.0, 1.0], {"method": "binomial", "trials": 20}, "every"),
        ([1, 2], [1.0, 1.0], {"method": "nls"}, "every"),
        ([1, 2], [-0.1, 0.5], {"method": "binomial", "trials": 20}, "below 0"),
    ],
)
def test_tables_without_a_law_are_refused(
    x: list[float], score: list[float], others: dict[str, object], word: str
) -> None:
    with pytest.raises(ProblemError, match=word):
        ScalingLaw.fit(x, score, max_score=1, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ({"max_score": 0}, "max_score"),
        ({"max_score": 1, "method": "log"}, "method"),
        ({"max_score": 1, "method": "binomial"}, "trials"),
        ({"max_score": 1, "method": "binomial", "trials": 0}, "trials"),
        ({"max_score": 1, "trials": 20}, "trials"),
    ],
)
def test_wrong_settings_are_refused(others: dict[str, object], word: str) -> None:
    with pytest.raises(SettingError, match=word):
        ScalingLaw.fit([1, 2], [0.5, 0.7], **others)  # type: ignore[arg-type]


def test_extrapolation_warns_and_interpolation_does_not() -> None:
    law = pour()
    law.predict([0.5, 1, 32, 64])
    with pytest.warns(ExtrapolationWarning, match="twice"):
        law.predict([65])
    with pytest.warns(ExtrapolationWarning, match="half"):
        law.predict([0.4])
    with pytest.warns(ExtrapolationWarning):
        law.bands([100])
    with pytest.warns(ExtrapolationWarning):
        law.needed(0.01)


def test_needed_is_the_smallest_size_that_reaches_the_gap() -> None:
    law = exact()
    assert law.needed(0.2) == 16
    assert law.needed(0.19999) == 17
    assert law.needed(0.8) == 1
    with pytest.raises(SettingError, match="gap"):
        law.needed(0.0)
    flat = ScalingLaw.fit([1, 2, 4], [0.5, 0.4, 0.3], max_score=1)
    with pytest.raises(ProblemError, match="not fall"):
        flat.needed(0.1)
    assert flat.needed(0.9) == 1


def test_bands_hold_the_law_as_often_as_they_say() -> None:
    x = np.array(SIZES, dtype=float)
    draw = np.random.default_rng(5)
    inside = np.zeros(3)
    runs = 300
    for run in range(runs):
        gap = 0.8 * x**-0.5 * np.exp(draw.normal(0, 0.15, 6))
        law = ScalingLaw.fit(x, 1 - gap, max_score=1)
        low, high = law.bands([1, 8, 32], draws=400, random_state=run)
        truth = 0.8 * np.array([1, 8, 32.0]) ** -0.5
        inside += (low <= truth) & (truth <= high)
    assert (inside / runs > 0.90).all()
    assert (inside / runs < 0.99).all()


@pytest.mark.parametrize("method", ["nls", "binomial"])
def test_bands_of_the_other_methods_surround_the_fit(method: str) -> None:
    trials = 200 if method == "binomial" else None
    score = np.array(POUR_SITES) / 9
    law = ScalingLaw.fit(SIZES, score, max_score=1, method=method, trials=trials)
    low, high = law.bands(SIZES, draws=100)
    fit = law.predict(SIZES)
    assert (low < fit).all()
    assert (fit < high).all()
    again = law.bands(SIZES, draws=100)
    np.testing.assert_array_equal(again[0], low)
    assert (law.bands(SIZES, draws=100, random_state=1)[0] != low).any()


def test_too_few_points_have_no_bands() -> None:
    law = ScalingLaw.fit([1, 2, 4], [0.2, 0.4, 0.5], max_score=1)
    with pytest.raises(ProblemError, match="4"):
        law.bands([2])


def test_saturation_of_the_published_pilots() -> None:
    found = saturation(DEMONSTRATIONS, POUR_DEMONSTRATIONS, max_score=9)
    assert (found.count, found.reached) == (200, True)
    assert found.gain == pytest.approx((7.2 - 6.875) / 9)
    assert saturation(DEMONSTRATIONS, MOUSE_DEMONSTRATIONS, max_score=6).count == 400
    rising = saturation([1, 2, 4], [0.1, 0.4, 0.7], max_score=1)
    assert (rising.count, rising.reached) == (4, False)
    with pytest.raises(SettingError, match="tolerance"):
        saturation([1, 2], [0.1, 0.2], max_score=1, tolerance=0)
    with pytest.raises(ProblemError, match="two"):
        saturation([2], [0.1], max_score=1)
    shuffled = saturation(DEMONSTRATIONS[::-1], POUR_DEMONSTRATIONS[::-1], max_score=9)
    assert shuffled == found


def test_a_plan_spends_on_sites_first() -> None:
    plan = pour().plan(1_000, cost_site=10, cost_object=5, cost_sample=0.1, samples=50)
    assert (plan.sites, plan.objects, plan.samples_per_site) == (50, 50, 50)
    assert plan.samples == 2_500
    assert plan.cost == pytest.approx(1_000)
    assert plan.gap == pytest.approx(1.17983 * 50**-0.84401, abs=1e-5)
    assert plan.score == pytest.approx(9 * (1 - plan.gap))
    assert plan.gap_low < plan.gap < plan.gap_high
    assert plan.warnings == ()
    assert plan.as_json()["sites"] == 50


def test_no_other_affordable_plan_predicts_less() -> None:
    law, costs = pour(), {"cost_site": 7.0, "cost_object": 3.0, "cost_sample": 0.2}
    for budget in (25, 100, 333, 500):
        plan = law.plan(budget, **costs, samples=20)
        assert plan.cost <= budget
        per_site = 7 + 3 + 0.2 * 20
        best = max(n for n in range(1, 64) if n * per_site <= budget)
        assert plan.sites == best
        assert plan.left_over == pytest.approx(budget - best * per_site)


def test_a_plan_without_more_sites_adds_objects() -> None:
    plan = pour().plan(
        1_000, cost_site=10, cost_object=5, cost_sample=0.1, samples=50, max_sites=20
    )
    assert (plan.sites, plan.objects, plan.samples_per_site) == (20, 80, 200)
    assert plan.cost == pytest.approx(20 * 10 + 80 * 10)
    assert any("objects" in warning for warning in plan.warnings)
    assert plan.gap == pytest.approx(1.17983 * 20**-0.84401, abs=1e-5)


def test_a_plan_takes_a_pilot_and_carries_its_doubt() -> None:
    pilot = saturation(DEMONSTRATIONS, POUR_DEMONSTRATIONS, max_score=9)
    assert pour().plan(1_000, cost_site=10, cost_sample=0.1, samples=pilot).samples_per_site == 200
    rising = saturation([1, 2, 4], [0.1, 0.4, 0.7], max_score=1)
    plan = pour().plan(100, cost_site=10, samples=rising)
    assert any("pilot" in warning for warning in plan.warnings)


def test_a_plan_beyond_the_measured_sizes_warns() -> None:
    with pytest.warns(ExtrapolationWarning):
        plan = pour().plan(10_000, cost_site=10, samples=1)
    assert plan.sites == 1_000
    assert any("twice" in warning for warning in plan.warnings)


def test_plans_that_cannot_be_are_refused() -> None:
    law = pour()
    with pytest.raises(SettingError, match="15"):
        law.plan(14, cost_site=10, cost_object=5, samples=50)
    with pytest.raises(SettingError, match="cost"):
        law.plan(100, cost_site=0, samples=50)
    with pytest.raises(SettingError, match="cost"):
        law.plan(100, cost_site=-1, cost_object=5, samples=50)
    with pytest.raises(SettingError, match="samples"):
        law.plan(100, cost_site=1, samples=0)
    with pytest.raises(SettingError, match="max_sites"):
        law.plan(100, cost_site=1, samples=1, max_sites=0)
    with pytest.raises(SettingError, match="budget"):
        law.plan(float("nan"), cost_site=1, samples=1)


def test_the_budget_for_a_target_is_the_smallest() -> None:
    law = exact(top=10.0)
    plan = law.plan_for(8.0, cost_site=10, cost_object=5, cost_sample=0.1, samples=50)
    assert plan.sites == 16
    assert plan.cost == pytest.approx(320)
    assert plan.score >= 8 - 1e-9
    with pytest.raises(SettingError, match="target"):
        law.plan_for(10.0, cost_site=10, samples=1)
    with pytest.raises(SettingError, match="max_sites"):
        law.plan_for(8.0, cost_site=10, samples=1, max_sites=15)


def test_laws_are_frozen_and_quiet() -> None:
    law = pour()
    with pytest.raises(AttributeError):
        law.a = 1.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        law.x[0] = 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law.bands(SIZES, draws=50)
