"""Saved forests: exact round trips, strict loading, nothing forgotten in the file."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_wine

from privml.errors import Corrupt, CorruptModelError, ModelVersionError, StorageError
from privml.storage import failpoints
from privml.storage.failpoints import Hook, Op
from privml.unlearning import DynForestClassifier, DynForestRegressor
from privml.unlearning.forest import Limits, verify_file
from privml.unlearning.forest.persistence import DEFAULT_LIMITS, load_model

HEAD = struct.Struct("<8sIIQQ")
SMALL: dict[str, Any] = {"n_estimators": 6, "random_state": 0, "max_depth": 5}


def wine_forest() -> DynForestClassifier:
    X, y = load_wine(return_X_y=True)
    X = np.round(X[::3], 1)
    X[::5, 2] = np.nan
    names = np.array(["barolo", "grignolino", "barbera"])
    ids = [f"bottle {i}" if i % 2 else i for i in range(len(X))]
    model = DynForestClassifier(**SMALL, categorical_features=[4]).fit(
        np.c_[X[:, :4], np.round(X[:, 4])], names[y[::3]], ids=ids
    )
    model.unlearn(ids[:5])
    return model


def diabetes_forest() -> DynForestRegressor:
    X, y = load_diabetes(return_X_y=True)
    return DynForestRegressor(**SMALL).fit(X[:60, :3], y[:60])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("forest") / "wine.forest"
    wine_forest().save(path)
    return path.read_bytes()


def reload(data: bytes, path: Path, kind: Any = DynForestClassifier, **more: Any) -> Any:
    path.write_bytes(data)
    return kind.load(path, **more)


def sections(data: bytes) -> tuple[bytes, bytes]:
    _, _, _, text, body = HEAD.unpack_from(data)
    return data[HEAD.size : HEAD.size + text], data[HEAD.size + text : HEAD.size + text + body]


def assemble(text: bytes, body: bytes, **head: int) -> bytes:
    """Return a file with a right checksum around any content."""
    data = HEAD.pack(b"PVMLFMDL", head.get("version", 1), head.get("zero", 0), len(text), len(body))
    data += text + body
    return data + hashlib.sha256(data).digest()


@pytest.mark.parametrize("model", [wine_forest(), diabetes_forest()])
def test_a_loaded_model_is_the_saved_one(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.forest"
    model.save(path)
    twin = type(model).load(path)
    assert twin.state_digest() == model.state_digest()
    assert twin.version_ == model.version_
    assert twin.ids_.tolist() == model.ids_.tolist()
    assert twin.n_features_in_ == model.n_features_in_
    assert twin.get_params()["max_depth"] == 5
    twin.save(tmp_path / "b.forest")
    assert (tmp_path / "b.forest").read_bytes() == path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert verify_file(path).ok


def test_a_loaded_model_forgets_and_learns_on(tmp_path: Path) -> None:
    model = wine_forest()
    model.save(tmp_path / "a")
    other = DynForestClassifier.load(tmp_path / "a", n_jobs=2)
    for m in (model, other):
        m.unlearn(["bottle 21", 6])
        m.learn([[1, 2, 3, 4, 5]], ["bardolino"], ids=["new"])
    assert model.state_digest() == other.state_digest()
    assert other.classes_.tolist() == model.classes_.tolist()


def test_copies_go_through_the_loader_and_carry_nothing_else() -> None:
    model = wine_forest()
    state = model.__getstate__()
    assert set(state) == {"params", "model"}
    twin = copy.deepcopy(model)
    assert twin.state_digest() == model.state_digest()
    assert copy.deepcopy(DynForestRegressor(7)).n_estimators == 7


def test_the_file_equals_that_of_a_model_that_never_saw_the_rows(tmp_path: Path) -> None:
    X, y = load_diabetes(return_X_y=True)
    X = X[:80].round(3)
    seen, unseen = (DynForestRegressor(**SMALL) for _ in range(2))
    seen.fit(X, y[:80]).unlearn(range(50, 80))
    unseen.fit(X[:50], y[:50])
    for name, model in (("seen", seen), ("unseen", unseen)):
        model.save(tmp_path / name)
    assert (
        sections((tmp_path / "seen").read_bytes())[1]
        == sections((tmp_path / "unseen").read_bytes())[1]
    )  # the descriptions differ in the version alone


def test_another_kind_of_model_is_refused(saved: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorruptModelError, match="classifier"):
        reload(saved, tmp_path / "x", DynForestRegressor)


def test_a_missing_file_and_a_folder_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        DynForestClassifier.load(tmp_path / "none")
    with pytest.raises(StorageError):
        DynForestClassifier.load(tmp_path)
    with pytest.raises(StorageError):
        wine_forest().save(tmp_path / "none" / "x")


def test_every_prefix_is_refused(saved: bytes) -> None:
    lengths = {*range(400), *range(400, len(saved), 97), len(saved) - 1}
    for length in sorted(lengths):
        with pytest.raises(CorruptModelError):
            load_model(saved[:length], limits=DEFAULT_LIMITS)
    with pytest.raises(CorruptModelError):
        load_model(saved + b"\0", limits=DEFAULT_LIMITS)


def test_every_flipped_byte_is_refused(saved: bytes) -> None:
    for at in range(0, len(saved), 7):
        altered = bytearray(saved)
        altered[at] ^= 1 << (at % 8)
        with pytest.raises((CorruptModelError, ModelVersionError)):
            load_model(altered, limits=DEFAULT_LIMITS)


def test_altered_content_is_refused_even_with_a_right_checksum(
    saved: bytes, rng: np.random.Generator
) -> None:
    """A file with a right checksum gives the model that its own rows imply, or an error.

    A bit of a feature that moves no threshold and no row is such another model.
    """
    text, body = sections(saved)
    refused = 0
    for _ in range(1_000):
        altered = bytearray(body)
        for at in rng.integers(0, len(body), int(rng.integers(1, 3))):
            altered[at] ^= 1 << int(rng.integers(8))
        try:
            model, _ = load_model(assemble(text, bytes(altered)), limits=DEFAULT_LIMITS)
        except (CorruptModelError, ModelVersionError):
            refused += 1
        else:
            assert model.canonical() == altered
    assert refused > 500


def test_random_bytes_are_refused(rng: np.random.Generator) -> None:
    for _ in range(300):
        text, body = rng.bytes(int(rng.integers(200))), rng.bytes(int(rng.integers(2000)))
        for data in (text, assemble(text, body), assemble(b"{}", b"PVMLFRST" + body)):
            with pytest.raises((CorruptModelError, ModelVersionError)):
                load_model(data, limits=DEFAULT_LIMITS)


HUGE = (0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


@pytest.mark.parametrize("word", range(10))
@pytest.mark.parametrize("value", HUGE)
def test_impossible_parameters_are_refused(saved: bytes, word: int, value: int) -> None:
    text, body = sections(saved)
    altered = bytearray(body)
    at = 12 + 8 * word
    if altered[at : at + 8] == value.to_bytes(8, "little"):
        return
    altered[at : at + 8] = value.to_bytes(8, "little")
    with pytest.raises(CorruptModelError):
        load_model(assemble(text, bytes(altered)), limits=DEFAULT_LIMITS)


@pytest.mark.parametrize("value", HUGE)
def test_impossible_lengths_are_refused(saved: bytes, value: int) -> None:
    text, body = sections(saved)
    p = 5
    altered = bytearray(body)
    at = 12 + 80 + p + 32  # the number of rows
    altered[at : at + 8] = value.to_bytes(8, "little")
    with pytest.raises(CorruptModelError):
        load_model(assemble(text, bytes(altered)), limits=DEFAULT_LIMITS)
    for lengths in ((value, len(body)), (len(text), value)):
        head = HEAD.pack(b"PVMLFMDL", 1, 0, *lengths)
        with pytest.raises(CorruptModelError):
            load_model(head + saved[HEAD.size :], limits=DEFAULT_LIMITS)


def test_newer_formats_say_so(saved: bytes) -> None:
    text, body = sections(saved)
    with pytest.raises(ModelVersionError, match="update"):
        load_model(assemble(text, body, version=2), limits=DEFAULT_LIMITS)
    newer = body[:8] + (2).to_bytes(4, "little") + body[12:]
    with pytest.raises(ModelVersionError, match="update"):
        load_model(assemble(text, newer), limits=DEFAULT_LIMITS)
    with pytest.raises(CorruptModelError):
        load_model(assemble(text, body, zero=1), limits=DEFAULT_LIMITS)


DESCRIPTIONS: tuple[dict[str, Any], ...] = (
    {"estimator": "regressor"},
    {"estimator": "tree"},
    {"version": -1},
    {"version": "1"},
    {"names": ["a"]},
    {"names": [1, 2, 3, 4, 5]},
    {"labels": ["barbera", "barolo"]},
    {"labels": ["barolo", "barbera", "grignolino"]},
    {"labels": ["barbera", "barbera", "grignolino"]},
    {"labels": [1, 2, 3]},
    {"label_kind": "int"},
    {"label_kind": "object"},
    {"labels": ["a", "b", "c", "d"], "labels_declared": True},
    {"surprise": 1},
    {"settings": {}},
    {"settings": None},
)


@pytest.mark.parametrize("change", DESCRIPTIONS)
def test_odd_descriptions_are_refused(saved: bytes, change: dict[str, Any]) -> None:
    text, body = sections(saved)
    altered = json.dumps({**json.loads(text), **change}).encode()
    with pytest.raises(CorruptModelError):
        load_model(assemble(altered, body), limits=DEFAULT_LIMITS)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"a":1'])
def test_descriptions_that_are_no_object_are_refused(saved: bytes, text: bytes) -> None:
    with pytest.raises(CorruptModelError):
        load_model(assemble(text, sections(saved)[1]), limits=DEFAULT_LIMITS)


def test_limits_bind_before_anything_is_built(saved: bytes, tmp_path: Path) -> None:
    with pytest.raises(Corrupt):
        reload(saved, tmp_path / "x", limits=Limits(max_bytes=1000))
    with pytest.raises(CorruptModelError, match="limit"):
        load_model(saved, limits=Limits(max_bytes=1000))
    with pytest.raises(CorruptModelError, match="rows"):
        load_model(saved, limits=Limits(max_rows=10))


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.forest"
    model = wine_forest()
    model.save(path)
    old = path.read_bytes()
    model.unlearn(["bottle 11"])
    new = tmp_path / "b.forest"
    model.save(new)
    steps = 0

    def fail_at(number: int) -> Hook:
        count = iter(range(1000))

        def hook(op: Op, do: Callable[[], None]) -> None:
            del op
            nonlocal steps
            steps = next(count) + 1
            if steps == number:
                raise OSError(errno.EIO, "disk error")
            do()

        return hook

    with failpoints.install(fail_at(0)):
        model.save(path)
    total, now = steps, new.read_bytes()
    assert path.read_bytes() == now
    for number in range(1, total + 1):
        path.write_bytes(old)
        with failpoints.install(fail_at(number)), pytest.raises(StorageError):
            model.save(path)
        assert path.read_bytes() in (old, now)
        assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


def test_the_layout_is_the_documented_one(saved: bytes) -> None:
    text, body = sections(saved)
    assert body[:8] == b"PVMLFRST"
    assert struct.unpack_from("<I10Q", body, 8) == (1, 0, 6, 2, 5, 10, 3, 10, 5, 3, 0)
    assert body[92:97] == bytes([0, 0, 0, 0, 1])
    assert struct.unpack_from("<Q", body, 97 + 32) == (55,)
    assert body.count(b"TREE") >= 6
    assert json.loads(text)["labels"] == ["barbera", "barolo", "grignolino"]
