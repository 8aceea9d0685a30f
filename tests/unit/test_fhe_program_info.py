"""What a client reads about a program before it trusts it with keys; needs no toolkit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from privml.errors import InsecureParameters, MalformedMessage
from privml.protocols.fhe.program_info import MAX_BYTES, ProgramInfo

VECTOR = Path(__file__).parents[1] / "vectors" / "tfhe-program.json"


@pytest.fixture
def tree() -> dict[str, Any]:
    return json.loads(VECTOR.read_bytes())


def info(tree: dict[str, Any]) -> ProgramInfo:
    return ProgramInfo(json.dumps(tree).encode())


def test_sizes_and_shapes_of_a_compiled_program() -> None:
    program = ProgramInfo(VECTOR.read_bytes())
    assert program.function == "f"
    assert program.compressed
    assert (program.input_shape, program.output_shape) == ((4, 6), (4, 6))
    assert program.query_bytes == 4 * 6 * 3 * 8
    assert program.answer_bytes == 4 * 6 * 1281 * 8
    assert program.key_bytes == 8 * (715 * 6 * 256 + 1280 * 3)


def test_keys_without_seeds_are_larger_and_not_compressed(tree: dict[str, Any]) -> None:
    tree["keyset"]["lweBootstrapKeys"][0]["compression"] = "none"
    tree["keyset"]["lweKeyswitchKeys"][0]["compression"] = "none"
    program = info(tree)
    assert not program.compressed
    assert program.key_bytes == 8 * (715 * 6 * 6 * 256 + 1280 * 3 * 716)


def test_input_without_a_seed_is_not_compressed(tree: dict[str, Any]) -> None:
    tree["circuits"][0]["inputs"][0]["typeInfo"]["lweCiphertext"]["compression"] = "none"
    assert not info(tree).compressed


def test_the_compilers_own_choice_is_secure() -> None:
    ProgramInfo(VECTOR.read_bytes()).require_secure()


def places(tree: dict[str, Any]) -> list[dict[str, Any]]:
    keyset = tree["keyset"]
    return [
        tree["circuits"][0]["inputs"][0]["typeInfo"]["lweCiphertext"]["encryption"],
        keyset["lweBootstrapKeys"][0]["params"],
        keyset["lweKeyswitchKeys"][0]["params"],
    ]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("factor", [0.99, 0.25, 1e-9, 0.0, -1.0])
def test_less_noise_anywhere_is_refused(tree: dict[str, Any], place: int, factor: float) -> None:
    weak = copy.deepcopy(tree)
    places(weak)[place]["variance"] *= factor
    with pytest.raises(InsecureParameters, match="128-bit"):
        info(weak).require_secure()


def test_a_small_dimension_is_refused_whatever_its_noise(tree: dict[str, Any]) -> None:
    params = tree["keyset"]["lweKeyswitchKeys"][0]["params"]
    params["outputLweDimension"], params["variance"] = 64, 1.0
    tree["keyset"]["lweSecretKeys"][1]["params"]["lweDimension"] = 64
    with pytest.raises(InsecureParameters, match="dimension 64"):
        info(tree).require_secure()


@pytest.mark.parametrize("place", range(3))
def test_noise_that_is_no_number_is_refused(tree: dict[str, Any], place: int) -> None:
    places(tree)[place]["variance"] = float("nan")
    with pytest.raises(InsecureParameters):
        info(tree).require_secure()


def test_noise_of_another_key_is_refused(tree: dict[str, Any]) -> None:
    tree["keyset"]["lweSecretKeys"][0]["params"]["lweDimension"] = 16
    with pytest.raises(MalformedMessage):
        info(tree)


def walk(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += walk(value, (*path, key))
    return found


@pytest.mark.parametrize("bad", [None, -1, [], {}, "x", 1 << 70])
def test_any_field_may_be_wrong(tree: dict[str, Any], bad: object) -> None:
    for path in walk(tree):
        broken = copy.deepcopy(tree)
        parent = broken
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = bad
        try:
            info(broken).require_secure()
        except (MalformedMessage, InsecureParameters):
            continue


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"{}", b"[" * 100_000, b"\xff\xfe", b" " * (MAX_BYTES + 1)],
    ids=["empty", "open", "list", "null", "object", "deep", "binary", "long"],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage, match="program description"):
        ProgramInfo(data)
