"""The thresholds file: round trip, the ring's grid, secrecy, hostile files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from privml.backbones.loader import random_encoder
from privml.errors import Corrupt, ParameterError, StorageError, UntrustedArtifact
from privml.protocols.cipherprune import PruneSpec, Thresholds
from privml.protocols.cipherprune.thresholds import model_digest

SIZES = {"layers": 3, "hidden": 8, "heads": 2, "ffn": 12, "vocab": 20, "max_positions": 9}


@pytest.fixture
def found() -> Thresholds:
    return Thresholds((0.0012, 0.0034), (0.0056, 0.0034), heads=12, model_digest="ab" * 32)


def test_values_lie_on_the_grid_of_the_ring(found: Thresholds) -> None:
    unit = 12 * 128 * 65536
    assert found.unit == unit
    assert found.raw_theta == (round(0.0012 * unit), round(0.0034 * unit))
    assert found.theta == tuple(k / unit for k in found.raw_theta)
    assert found.layers == 3
    again = Thresholds.of_raw(
        found.raw_theta, found.raw_beta, heads=12, model_digest=found.model_digest
    )
    assert again == found
    assert again.raw_beta == found.raw_beta


@pytest.mark.parametrize("name", ["t", "t.json", "t.safetensors", "two.dots.json"])
def test_round_trip(found: Thresholds, tmp_path: Path, name: str) -> None:
    written = found.save(tmp_path / name)
    assert written.suffix == ".json"
    assert Thresholds.load(written) == found
    assert Thresholds.load(tmp_path / name) == found
    modes = {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert modes == {0}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_model_of_one_layer_has_no_thresholds(tmp_path: Path) -> None:
    none = Thresholds((), (), heads=2)
    none.save(tmp_path / "none")
    assert Thresholds.load(tmp_path / "none") == none


def test_repr_and_public_files_show_no_threshold(found: Thresholds, tmp_path: Path) -> None:
    assert "0.00" not in repr(found)
    spec = PruneSpec(found)
    assert "0.00" not in repr(spec)
    assert "theta" not in json.dumps(spec.as_dict())
    assert spec.public().thresholds is None
    assert spec == spec.public()
    found.save(tmp_path / "t")
    text = (tmp_path / "t.json").read_text()
    assert all(str(k) not in text for k in (*found.raw_theta, *found.raw_beta))


def test_saving_twice_needs_a_word(found: Thresholds, tmp_path: Path) -> None:
    found.save(tmp_path / "t")
    with pytest.raises(StorageError):
        found.save(tmp_path / "t")
    other = Thresholds((0.001, 0.002), (0.001, 0.002), heads=12)
    other.save(tmp_path / "t", replace=True)
    assert Thresholds.load(tmp_path / "t") == other


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"theta": (0.2,), "beta": (0.1,)}, "layer 0"),
        ({"theta": (-0.1,), "beta": (0.1,)}, "layer 0"),
        ({"theta": (0.0,), "beta": (float("nan"),)}, "layer 0"),
        ({"theta": (0.0,), "beta": (1.5,)}, "layer 0"),
        ({"theta": (0.0,), "beta": ()}, "1 values of theta and 0 of beta"),
        ({"theta": (), "beta": (), "heads": 0}, "heads"),
        ({"theta": (), "beta": (), "reference": 0}, "reference"),
        ({"theta": (), "beta": (), "model_digest": "xyz"}, "64 hexadecimal"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Thresholds(**{"heads": 2, **values})


def test_they_belong_to_one_model() -> None:
    encoder = random_encoder(**SIZES, seed=1)
    found = Thresholds((0.1, 0.1), (0.2, 0.2), heads=2).bound_to(encoder)
    assert found.model_digest == model_digest(encoder)
    found.require(encoder)
    with pytest.raises(ParameterError, match="other weights"):
        found.require(random_encoder(**SIZES, seed=2))
    with pytest.raises(ParameterError, match="3 layers of 2 heads"):
        found.require(random_encoder(**{**SIZES, "heads": 4}))
    with pytest.raises(ParameterError, match="positive"):
        Thresholds.of_raw((1,), (1,), heads=0)


# ---- hostile files -----------------------------------------------------------------------------


def edited(folder: Path, **changes: object) -> Path:
    """Change fields of the JSON file."""
    path = folder / "t.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"version": 2},
        {"version": "1"},
        {"surplus": 1},
        {"heads": 0},
        {"heads": 1 << 40},
        {"layers": 4},
        {"layers": -1},
        {"model_digest": "no"},
        {"reference": 1 << 30},
    ],
)
def test_a_changed_header_is_refused(
    found: Thresholds, tmp_path: Path, changes: dict[str, object]
) -> None:
    found.save(tmp_path / "t")
    with pytest.raises(Corrupt):
        Thresholds.load(edited(tmp_path, **changes))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff\xfe", b"[" * 5000, b"{" * 70_000])
def test_a_file_that_is_no_header_is_refused(
    found: Thresholds, tmp_path: Path, data: bytes
) -> None:
    found.save(tmp_path / "t")
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(Corrupt):
        Thresholds.load(tmp_path / "t")


def test_a_changed_bit_of_the_numbers_is_refused(found: Thresholds, tmp_path: Path) -> None:
    found.save(tmp_path / "t")
    path = tmp_path / "t.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UntrustedArtifact, match="both"):
        Thresholds.load(tmp_path / "t")


def good(**arrays: object) -> dict[str, np.ndarray]:
    pair = {"theta": np.array([1, 2], np.int64), "beta": np.array([3, 4], np.int64)}
    return {**pair, **arrays}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 4) + b"null",
        safetensors.numpy.save(good(theta=np.array([1.0, 2.0]))),
        safetensors.numpy.save(good(theta=np.array([1], np.int64))),
        safetensors.numpy.save(good(more=np.array([1], np.int64))),
        safetensors.numpy.save(good(theta=np.array([-1, 2], np.int64))),
        safetensors.numpy.save(good(theta=np.array([9, 2], np.int64))),
        safetensors.numpy.save(good(beta=np.array([1 << 62, 1 << 62], np.int64))),
    ],
)
def test_numbers_that_are_none_are_refused_even_with_their_digest(
    found: Thresholds, tmp_path: Path, data: bytes
) -> None:
    import hashlib

    found.save(tmp_path / "t")
    (tmp_path / "t.safetensors").write_bytes(data)
    path = edited(tmp_path, tensors=hashlib.sha256(data).hexdigest())
    with pytest.raises(Corrupt):
        Thresholds.load(path)


def test_missing_and_special_files_are_refused(found: Thresholds, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Thresholds.load(tmp_path / "t")
    with pytest.raises(ParameterError, match="names no thresholds file"):
        Thresholds.load(tmp_path / ".json")
    found.save(tmp_path / "real")
    (tmp_path / "t.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(StorageError, match="symbolic link"):
        Thresholds.load(tmp_path / "t")
