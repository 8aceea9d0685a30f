"""Digests compare as they are, certificates come back from JSON and are held against models."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from privml.errors import Corrupt
from privml.unlearning import DynForestClassifier
from privml.unlearning.forest import Certificate


@pytest.fixture
def model() -> DynForestClassifier:
    X, y = load_breast_cancer(return_X_y=True)
    return DynForestClassifier(10).fit(X[:120], y[:120])


def test_digests_are_one_type_everywhere(model: DynForestClassifier) -> None:
    certificate = model.unlearn([5], digest=True)
    digest = model.state_digest()
    assert isinstance(digest, str)
    assert len(bytes.fromhex(digest)) == 32
    assert certificate.state_digest == digest
    assert model.audit().state_digest == digest
    assert json.loads(certificate.to_json())["state_digest"] == digest


def test_certificates_come_back_from_json(model: DynForestClassifier) -> None:
    certificate = model.unlearn([5, 9], digest=True)
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.verify(model) == ()
    assert Certificate.from_json(certificate.to_json().decode()).as_persisted().persisted
    assert certificate.as_persisted().verify(model) == ()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"format":1}', "{"]
)
def test_what_is_no_certificate_is_refused(data: bytes | str) -> None:
    with pytest.raises(Corrupt):
        Certificate.from_json(data)


def test_odd_fields_are_refused(model: DynForestClassifier) -> None:
    fields = json.loads(model.unlearn([5]).to_json())
    for change in ({"extra": 1}, {"format": "privml-forest-certificate/2"}, {"rows_after": "5"}):
        with pytest.raises(Corrupt):
            Certificate.from_json(json.dumps({**fields, **change}))


CHANGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"key_commitment": "00" * 32}, "another key"),
    ({"parameters_digest": "00" * 32}, "hyper-parameters"),
    ({"rows_before": 500}, "do not add up"),
    ({"rows_before": 100, "rows_after": 98}, "number of rows"),
    ({"classes_after": 3}, "number of rows or classes"),
    ({"state_digest": "00" * 32}, "state digest"),
    ({"version_after": 7}, "older"),
    ({"guarantee": "about the same"}, "guarantee"),
    ({"algorithm": "other/1"}, "guarantee"),
)


@pytest.mark.parametrize(("change", "says"), CHANGES)
def test_contradictions_are_found(
    model: DynForestClassifier, change: dict[str, Any], says: str
) -> None:
    certificate = msgspec.structs.replace(model.unlearn([5, 9], digest=True), **change)
    (finding,) = certificate.verify(model)
    assert says in finding
    assert model.verify(certificate) == (finding,)


def test_an_older_file_and_a_row_that_came_back_contradict(
    model: DynForestClassifier, tmp_path: Path
) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model.save(tmp_path / "before")
    certificate = model.unlearn([5])
    model.save(tmp_path / "after")
    assert certificate.verify(DynForestClassifier.load(tmp_path / "after")) == ()
    old = certificate.verify(DynForestClassifier.load(tmp_path / "before"))
    assert old == ("1 of its ids live in the model", "the model is older than it")
    model.unlearn([6])
    assert certificate.verify(model) == ()
    model.learn(X[[5]], y[[5]], ids=[5])
    assert certificate.verify(model) == ("1 of its ids live in the model",)
    assert "another key" in certificate.verify(model.rekey())[0]


def test_forgetting_nobody_is_no_change(model: DynForestClassifier) -> None:
    version = model.version_
    certificate = model.unlearn([])
    assert model.version_ == version
    assert certificate.version_before == certificate.version_after == version
    assert certificate.id_hashes == ()
    assert certificate.verify(model) == ()


def test_a_uuid_is_its_text() -> None:
    names = [uuid.UUID(int=i**20) for i in range(1, 5)]
    model = DynForestClassifier(5).fit(np.arange(4.0)[:, None], [0, 1, 0, 1], ids=names)
    assert model.contains([str(name) for name in names]).all()
    model.unlearn([names[2]])
    assert model.contains(names).tolist() == [True, True, False, True]
