"""The loader: search, refusals, environment switches, return codes, and what the library links."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privml import _native
from privml.errors import ParameterError

PROBE = "from privml import _native, rings; import numpy as np; print(_native.backend())"
NATIVE = pytest.mark.skipif(_native.load() is None, reason="runs on the reference kernels")


@pytest.fixture
def unloaded() -> Iterator[None]:
    """Forget what was loaded, before and after the test."""
    caches = (_native._load, _native.features, _native.isa_level)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def probe(**environment: str) -> subprocess.CompletedProcess[str]:
    """Report the backend of a fresh process."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PRIVML_")}
    root = str(Path(_native.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**clean, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def reason_without(candidate: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Load with one candidate only and return the single warning."""
    monkeypatch.delenv("PRIVML_KERNELS", raising=False)
    monkeypatch.setattr(_native, "_candidates", lambda: iter([candidate]))
    with pytest.warns(UserWarning, match="slow numpy kernels") as caught:
        loaded = [_native.load(), _native.load()]
    assert loaded == [None, None]
    assert len(caught) == 1
    assert _native.backend().name == "reference"
    return str(caught[0].message)


@NATIVE
def test_the_best_instruction_set_is_chosen() -> None:
    result = probe()
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    best = 2 if _native.features() & _native.AVX512 else _native.features() & _native.AVX2
    assert f"isa='{_native.ISAS[best]}'" in result.stdout
    assert "name='native'" in result.stdout


@NATIVE
def test_the_environment_selects_the_instruction_set() -> None:
    assert "isa='scalar'" in probe(PRIVML_ISA="scalar").stdout


def test_reference_kernels_on_request_without_a_warning() -> None:
    result = probe(PRIVML_KERNELS="reference")
    assert "Backend(name='reference', isa='numpy', reason='PRIVML_KERNELS=reference')" in (
        result.stdout
    )
    assert not result.stderr


@pytest.mark.parametrize("variable", ["PRIVML_KERNELS", "PRIVML_ISA"])
def test_unknown_values_are_refused(variable: str) -> None:
    if _native.load() is None and variable == "PRIVML_ISA":
        pytest.skip("no instruction set to choose on the reference kernels")
    result = probe(**{variable: "sse9"})
    assert result.returncode != 0
    assert f"ParameterError: {variable}='sse9' is unknown" in result.stderr


@NATIVE
def test_an_instruction_set_the_machine_lacks_is_refused(
    unloaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVML_ISA", "avx512")
    monkeypatch.setattr(_native, "features", lambda: _native.AVX2)
    with pytest.raises(ParameterError, match="does not run on this machine"):
        _native.isa_level()


def test_a_missing_library_warns_once_with_reason_and_fix(
    unloaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = reason_without(tmp_path / _native.LIBRARY, monkeypatch)
    assert "libprivml_cpu.so not found" in text
    assert "pip install -e ." in text
    assert "PRIVML_KERNELS=reference" in text


def test_a_broken_library_is_named(
    unloaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / _native.LIBRARY
    broken.write_bytes(b"\x7fELF but not really")
    assert "cannot be loaded" in reason_without(broken, monkeypatch)


@NATIVE
def test_another_abi_version_is_refused(
    unloaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = next(path for path in _native._candidates() if path.is_file())
    current = _native.ABI_VERSION
    monkeypatch.setattr(_native, "ABI_VERSION", 999)
    assert f"ABI version {current}, this package needs 999" in reason_without(found, monkeypatch)


@NATIVE
def test_loading_twice_gives_the_same_object_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _native.load() is _native.load()


def test_return_codes_become_exceptions() -> None:
    _native.check(0, "kernel")
    with pytest.raises(MemoryError, match="kernel: no memory"):
        _native.check(2, "kernel")
    with pytest.raises(AssertionError, match="kernel refused its arguments"):
        _native.check(1, "kernel")


@NATIVE
def test_kernels_refuse_bad_sizes_and_instruction_sets() -> None:
    library = _native.load()
    assert library is not None
    at = _native.address(np.zeros(64, dtype=np.uint64))
    gemm = (at, 0, 1, 1, at, 0, 1, 1, at, 1, 1)
    for isa, wanted in ((0, 1), (7, 3), (-1, 3)):
        size = -1 if wanted == 1 else 1
        assert library.privml_chunk_onehot(isa, at, size, at) == wanted
        for rows, n in ((1, size), (size, 1)):
            assert library.privml_pack_bits(isa, at, rows, n, at) == wanted
            assert library.privml_unpack_bits(isa, at, rows, n, at) == wanted
            assert library.privml_top_bits(isa, at, rows, n, at) == wanted
            assert library.privml_chunk_compare(isa, at, rows, n, 16, at, 0, at, at) == wanted
        assert library.privml_tree_masked(isa, at, size, 1, 1, 1, at, at, at, at) == wanted
        assert library.privml_gelu(isa, size, 0, *[at] * 12) == wanted
        assert library.privml_gelu_low(isa, size, 0, *[at] * 8) == wanted
        assert library.privml_exp(isa, size, 0, *[at] * 9) == wanted
        assert library.privml_exp_low(isa, size, 0, *[at] * 9) == wanted
        assert library.privml_maximum(isa, size, *[at] * 6) == wanted
        level = (at, size, 1, 1, 1, 1, 0, 0, *[at] * 7)
        assert library.privml_tree_level(isa, *level) == wanted
        assert library.privml_gemm_u64(isa, 1, 1, size, 1, *gemm, 1) == wanted
        assert library.privml_gemm_u32(isa, 1, 1, size, 1, *gemm, 1) == wanted
        assert library.privml_aes128_ctr(isa, bytes(16), 0, 0, at, size) == wanted
    assert library.privml_gemm_u64(0, 1, 1, 1, 1, *gemm, 0) == 1


@NATIVE
def test_the_library_stands_alone_and_is_small() -> None:
    found = next(path for path in _native._candidates() if path.is_file())
    data = found.read_bytes()
    assert len(data) < 1_000_000
    for foreign in (b"libpython", b"libtorch", b"libc10", b"libgomp"):
        assert foreign not in data
