"""Loader of ``libprivml_cpu``: search, ABI check, instruction set choice, error mapping.

The library is plain C ABI, reached through ctypes; a call costs about two microseconds and
releases the GIL. This module alone owns the library handle, the argument types and the mapping
from return codes to exceptions. The wrappers (:mod:`privml.rings`, :mod:`privml.rng`,
``privml.protocols.mpc.ops``) check shapes and dtypes before they call.

Environment
-----------
``PRIVML_KERNELS=reference``
    Never load the library; every kernel runs its numpy twin.
``PRIVML_ISA=scalar|avx2|avx512``
    Use this instruction set instead of the best one that processor and system support.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

import privml
from privml.errors import ParameterError, internal

ABI_VERSION: Final = 4
LIBRARY: Final = "libprivml_cpu.so"
ISAS: Final = ("scalar", "avx2", "avx512")

AVX2: Final = 1
AVX512: Final = 2
AESNI: Final = 4
VAES256: Final = 8
VAES512: Final = 16

_I32, _I64, _U64, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p
_GEMM: Final = [_I32, *[_I64] * 4, *[_PTR, _I64, _I64, _I64] * 2, _PTR, _I64, _I64, _I32]
_SIGNATURES: Final[dict[str, list[Any]]] = {
    "privml_gemm_u64": _GEMM,
    "privml_gemm_u32": _GEMM,
    "privml_aes128_ctr": [_I32, ctypes.c_char_p, _U64, _U64, _PTR, _I64],
    "privml_chunk_onehot": [_I32, _PTR, _I64, _PTR],
    "privml_chunk_compare": [_I32, _PTR, _I64, _I64, _I32, _PTR, _I64, _PTR, _PTR],
    "privml_pack_bits": [_I32, _PTR, _I64, _I64, _PTR],
    "privml_unpack_bits": [_I32, _PTR, _I64, _I64, _PTR],
    "privml_top_bits": [_I32, _PTR, _I64, _I64, _PTR],
    "privml_gelu": [_I32, _I64, _I32, *[_PTR] * 12],
    "privml_gelu_low": [_I32, _I64, _I32, *[_PTR] * 8],
    "privml_maximum": [_I32, _I64, *[_PTR] * 6],
    "privml_exp": [_I32, _I64, _I32, *[_PTR] * 9],
    "privml_exp_low": [_I32, _I64, _I32, *[_PTR] * 9],
    "privml_tree_masked": [_I32, _PTR, *[_I64] * 4, *[_PTR] * 4],
    "privml_tree_level": [_I32, _PTR, *[_I64] * 6, _I32, *[_PTR] * 7],
}
_Nothing = ctypes.c_char * 0
_OUT_OF_MEMORY: Final = 2
_FIX: Final = "run `pip install -e .` with a C++20 compiler, or set PRIVML_KERNELS=reference"


@dataclass(frozen=True)
class Backend:
    """Which kernels run.

    Attributes
    ----------
    name
        ``"native"`` or ``"reference"``.
    isa
        ``"scalar"``, ``"avx2"``, ``"avx512"``, or ``"numpy"`` for the reference twins.
    reason
        Why this backend was chosen, one line.
    """

    name: str
    isa: str
    reason: str


def load() -> ctypes.CDLL | None:
    """Return the native library, or None when the numpy twins are to be used.

    The first call searches and checks; later calls return the same object. A missing or
    unusable library warns once with the reason and the fix.

    Returns
    -------
    ctypes.CDLL or None
        Library with argument types set; None if missing, of another ABI version, or switched
        off by ``PRIVML_KERNELS=reference``.
    """
    return _load()[0]


def backend() -> Backend:
    """Report the backend and instruction set in use.

    Raises
    ------
    ParameterError
        ``PRIVML_ISA`` or ``PRIVML_KERNELS`` names something unknown or not supported here.
    """
    library, reason = _load()
    if library is None:
        return Backend("reference", "numpy", reason)
    return Backend("native", ISAS[isa_level()], reason)


@cache
def features() -> int:
    """Return the bit set of usable instruction sets (``AVX2 | AVX512 | AESNI | ...``)."""
    library = load()
    return 0 if library is None else int(library.privml_cpu_features())


@cache
def isa_level() -> int:
    """Return the index into :data:`ISAS` that the kernels shall use.

    Raises
    ------
    ParameterError
        ``PRIVML_ISA`` names an unknown instruction set or one this machine cannot run.
    """
    best = 2 if features() & AVX512 else 1 if features() & AVX2 else 0
    wanted = os.environ.get("PRIVML_ISA", "")
    if not wanted:
        return best
    if wanted not in ISAS:
        raise ParameterError(f"PRIVML_ISA={wanted!r} is unknown; use one of {', '.join(ISAS)}")
    if ISAS.index(wanted) > best:
        raise ParameterError(f"PRIVML_ISA={wanted} does not run on this machine; unset it")
    return ISAS.index(wanted)


def address(array: NDArray[Any]) -> int:
    """Return the address of the first element of ``array`` for a native call."""
    if array.flags.carray:  # four times as fast as what follows
        return ctypes.addressof(_Nothing.from_buffer(array.data))
    return int(array.ctypes.data)


def check(code: int, what: str) -> None:
    """Turn the return code of a native call into an exception.

    Parameters
    ----------
    code
        Return value of the call; 0 is success.
    what
        Name of the kernel, for the message.

    Raises
    ------
    MemoryError
        The kernel could not allocate its working space.
    """
    if code == _OUT_OF_MEMORY:
        raise MemoryError(f"{what}: no memory for the working space of the kernel")
    internal(code == 0, f"native kernel {what} refused its arguments (code {code})")


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    mode = os.environ.get("PRIVML_KERNELS", "")
    if mode == "reference":
        return None, "PRIVML_KERNELS=reference"
    if mode not in ("", "native"):
        raise ParameterError(f"PRIVML_KERNELS={mode!r} is unknown; use 'reference' or unset it")
    reason = f"{LIBRARY} not found"
    for path in _candidates():
        if path.is_file():
            library, reason = _open(path)
            if library is not None:
                return library, f"loaded {path.name}"
    warnings.warn(f"privml runs on slow numpy kernels: {reason}; {_FIX}", stacklevel=3)
    return None, reason


def _candidates() -> Iterator[Path]:
    """Places to look: next to this file, where an editable install keeps it, site-packages."""
    yield Path(__file__).parent / LIBRARY
    for folder in privml.__path__:
        yield Path(folder) / LIBRARY
    yield Path(sysconfig.get_path("platlib")) / "privml" / LIBRARY


def _open(path: Path) -> tuple[ctypes.CDLL | None, str]:
    try:
        library = ctypes.CDLL(str(path))
        version = int(library.privml_abi_version())
    except (OSError, AttributeError) as error:
        return None, f"{path.name} cannot be loaded ({error})"
    if version != ABI_VERSION:
        return None, f"{path.name} has ABI version {version}, this package needs {ABI_VERSION}"
    for name, argtypes in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = argtypes, _I32
    return library, ""
