"""Stand-ins for CUDA libraries, so that a CUDA build of torch loads without gigabytes of them.

Package registries offer torch 2.3.1 for x86-64 Linux as a CUDA build only. It names eight large
libraries that its loader must find, although nothing of them is called on a machine that computes
on its CPU. A stand-in is a shared library of a few hundred bytes with the right name; it defines
only those functions whose address the loader asks for at once. Whatever calls into it ends the
process. The small CUDA run-time libraries, which are called, are installed as they are.
The worker binds functions when they are called (``RTLD_LAZY``), not all of them at once.
"""

from __future__ import annotations

import struct
from typing import Final

LIBRARIES: Final[dict[str, tuple[str, ...]]] = {
    "libcublas.so.12": (),
    "libcublasLt.so.12": (),
    "libcudnn.so.8": ("cudnnGetRNNLinLayerBiasParams", "cudnnGetRNNLinLayerMatrixParams"),
    "libcufft.so.11": (),
    "libcurand.so.10": (),
    "libcusolver.so.11": (),
    "libcusparse.so.12": (),
    "libnccl.so.2": (),
}
"""Library name to the functions whose address is taken when torch is loaded."""

_PAGE: Final = 0x1000
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_ENTRY: Final = struct.Struct("<QQ")
_VERSION: Final = struct.Struct("<HHHHIIIII")
_SEGMENTS: Final = 4
_LOAD, _DYNAMIC, _GNU_STACK = 1, 2, 0x6474E551
_READ, _READ_WRITE = 4, 6
_SHARED, _X86_64 = 3, 62
_GLOBAL_FUNCTION, _ABSOLUTE = 0x12, 0xFFF1
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 4, 5, 6, 10, 11, 14
_VERSYM, _VERDEF, _VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_OWN_VERSION: Final = 2
_FRONT: Final = _HEADER.size + _SEGMENTS * _SEGMENT.size


def stand_in(name: str, functions: tuple[str, ...] = ()) -> bytes:
    """Return an x86-64 ELF shared library that is called ``name`` and does nothing.

    Parameters
    ----------
    name
        Its name, as other libraries ask for it, and the version of its functions.
    functions
        Names it defines; they have an address and no code behind it.
    """
    strings, offsets = b"\0", []
    for text in (name, *functions):
        offsets.append(len(strings))
        strings += text.encode("ascii") + b"\0"
    symbols = bytes(_SYMBOL.size) + b"".join(
        _SYMBOL.pack(offset, _GLOBAL_FUNCTION, 0, _ABSOLUTE, _PAGE, 0) for offset in offsets[1:]
    )
    count = len(functions) + 1
    parts = {
        _SYMTAB: symbols,
        _STRTAB: strings,
        _HASH: _one_bucket(count),
        _VERSYM: struct.pack(f"<{count}H", 0, *[_OWN_VERSION] * len(functions)),
        _VERDEF: _versions(name, offsets[0]),
    }
    body, places = bytearray(), {}
    for tag, part in parts.items():
        places[tag] = _FRONT + len(body)
        body += part + bytes(-len(part) % 8)
    sizes = {_STRSZ: len(strings), _SYMENT: _SYMBOL.size, _SONAME: offsets[0], _VERDEFNUM: 2}
    entries = [*places.items(), *sizes.items(), (0, 0)]
    dynamic = b"".join(_ENTRY.pack(*entry) for entry in entries)
    front = _front(_FRONT + len(body), len(dynamic))
    return front + bytes(body) + bytes(_PAGE - _FRONT - len(body)) + dynamic


def _versions(name: str, offset: int) -> bytes:
    """Return the version of the file and that of its functions, both called ``name``."""
    number = 0
    for letter in name.encode("ascii"):  # the hash of the ELF specification
        number = (number << 4) + letter
        number = (number ^ ((number & 0xF0000000) >> 24)) & 0x0FFFFFFF
    size = _VERSION.size
    return b"".join(
        _VERSION.pack(1, flags, index, 1, number, size - 8, following, offset, 0)
        for flags, index, following in ((1, 1, size), (0, _OWN_VERSION, 0))
    )


def _one_bucket(symbols: int) -> bytes:
    """Return a hash table whose one bucket chains all symbols but the empty first one."""
    chain = [0, *(n + 1 if n + 1 < symbols else 0 for n in range(1, symbols))]
    first = 1 if symbols > 1 else 0
    return struct.pack(f"<{3 + symbols}I", 1, symbols, first, *chain)


def _front(text_bytes: int, dynamic_bytes: int) -> bytes:
    """Return the file header and the program headers."""
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = _HEADER.pack(
        identity, _SHARED, _X86_64, 1, 0, _HEADER.size, 0, 0,
        _HEADER.size, _SEGMENT.size, _SEGMENTS, 0, 0, 0,
    )  # fmt: skip
    return header + b"".join(
        _SEGMENT.pack(kind, access, start, start, start, size, size, align)
        for kind, access, start, size, align in (
            (_LOAD, _READ, 0, text_bytes, _PAGE),
            (_LOAD, _READ_WRITE, _PAGE, dynamic_bytes, _PAGE),
            (_DYNAMIC, _READ_WRITE, _PAGE, dynamic_bytes, 8),
            (_GNU_STACK, _READ_WRITE, 0, 0, 16),  # without it an executable stack is asked for
        )
    )
