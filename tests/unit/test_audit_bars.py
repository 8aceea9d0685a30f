"""The audit's own checks: they must notice what is wrong, and add up what they measure."""

from __future__ import annotations

import numpy as np
import pytest

from privml.backbones import random_encoder
from privml.protocols import mpc


def test_ring_products_are_checked_on_every_shape(load) -> None:
    gemm = load("gemm_bars")
    wrong, checked = gemm.wrong_elements(gemm.ScienceSeed(5))
    assert wrong == 0
    assert checked > 2 * 2 * sum(min(m * n, gemm.SAMPLES) for m, _, n in gemm.ODD)


@pytest.mark.parametrize("broken", ["last term lost", "signed saturation", "float64"])
def test_a_wrong_ring_product_is_noticed(load, monkeypatch, broken) -> None:
    gemm = load("gemm_bars")

    def product(a, b):
        if broken == "last term lost":
            return a[:, :-1] @ b[:-1]
        if broken == "float64":
            exact = a.astype(np.float64) @ b.astype(np.float64)
            return np.fmod(exact, float(1 << (8 * a.itemsize))).astype(a.dtype)
        top = a.dtype.type(1 << (8 * a.itemsize - 1))
        return np.minimum(a @ b, top)

    monkeypatch.setattr(gemm, "ring_matmul", product)
    monkeypatch.setattr(gemm, "SHAPE", (3, 9, 4))
    assert gemm.wrong_elements(gemm.ScienceSeed(5))[0] > 0


@pytest.fixture(scope="module")
def plan() -> mpc.Plan:
    encoder = random_encoder(layers=1, hidden=24, heads=2, ffn=48, vocab=16, max_positions=16)
    return mpc.PrivateModel(encoder).plan(n=8)


def test_bytes_one_after_another_lie_between_one_and_both_directions(load, plan) -> None:
    links = load("link_bars")
    nbytes = links.one_after_another(plan)
    assert max(plan.cost.sent) <= nbytes < sum(plan.cost.sent)


def test_modelled_time_is_compute_flights_and_transfer(load, plan) -> None:
    links = load("link_bars")
    expected = 0.5 + plan.cost.flights * 0.02 + 8 * links.one_after_another(plan) / 200e6
    assert links.modelled(plan, links.WAN, 0.5) == pytest.approx(expected)
    assert len(links.link_names("x")) == len(set(links.link_names("x"))) == 6


def test_every_row_falls_into_one_group_that_is_long_enough(load) -> None:
    fidelity = load("fidelity_bars")
    lengths = np.array([3, 64, 64, 65, 127, 128, 129, 256])
    rows: list[int] = []
    for n, part in fidelity.grouped(lengths):
        assert lengths[part].max() <= n < lengths[part].max() + 64
        rows += range(len(lengths))[part]
    assert rows == list(range(len(lengths)))


def test_sentences_are_spread_over_the_file(load, tmp_path) -> None:
    fidelity = load("fidelity_bars")
    path = tmp_path / "news.tsv"
    lines = [f"text {i} {'long ' * (i % 2)}\ttopic" for i in range(100)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert [text.split()[1] for text in fidelity.sentences(path, 4)] == ["0", "25", "50", "75"]
    chosen = fidelity.sentences(path, 5, words=2)
    assert chosen == [f"text {i}" for i in (0, 20, 40, 60, 80)]


def test_fidelity_bars_tell_agreement_from_disagreement(load) -> None:
    fidelity, frame = load("fidelity_bars"), load("frame")
    labels = np.eye(4, 6)
    clear = np.vstack([labels, [[1.0, 0.9, 0, 0, 0, 0], [0, 0, 1.0, 0, 0, 0]]])
    same, other = frame.Report(), frame.Report()
    fidelity._bars(same, clear.copy(), clear, {})
    assert [bar.holds for bar in same.bars] == [True, True, None]
    private = clear.copy()
    private[4] = [0.9, 1.0, 0, 0, 0, 0]
    fidelity._bars(other, private, clear, {})
    cosine, agreement, margin = other.bars
    assert cosine.value == pytest.approx(1.8 / 1.81)
    assert (cosine.holds, agreement.value, agreement.holds) == (False, 0.5, False)
    assert 0 < margin.value < 0.1


def test_missing_news_is_a_reason_not_a_verdict(load, monkeypatch) -> None:
    fidelity, frame = load("fidelity_bars"), load("frame")
    monkeypatch.setattr(fidelity, "news_file", lambda: None)
    report = frame.Report()
    fidelity.fidelity_section(report, frame.Options(quick=True))
    assert [bar.name for bar in report.bars] == list(fidelity.NAMES)
    assert all(bar.holds is None and "PRIVML_DATA" in bar.reason for bar in report.bars)
    assert report.exit_status == 0


def test_news_folder_can_be_named(load, monkeypatch, tmp_path) -> None:
    fidelity = load("fidelity_bars")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "agnews-train.tsv").write_text("a\tWorld\n", encoding="utf-8")
    monkeypatch.setenv("PRIVML_DATA", str(tmp_path))
    assert fidelity.news_file() == tmp_path / "text" / "agnews-train.tsv"
