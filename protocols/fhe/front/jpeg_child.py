"""Child process that reads JPEG coefficients; started by :mod:`.jpeg_reader`.

Requests on standard input, answers on standard output, until the input ends. It limits its own
processor time, memory, open files and file sizes before it reads a byte, writes nothing to disk
(the file lies in anonymous memory), and treats every complaint of the native parser as failure.

Request: ``<IB`` length and component count, ``<II`` block rows and columns of each component, the
file. Answer: ``0`` and, for each component, its coefficients (int16, row-major blocks of 8x8) and
its quantisers (uint16, 64); or ``1``, ``<H`` length and a message. The first ``0`` of all says that
the process is ready.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias

Part: TypeAlias = "bytes | ctypes.Array[ctypes.c_int16]"

CPU_S: Final = 20
MEMORY_BYTES: Final = 1 << 30
_FILE_BYTES: Final = 1 << 26
_OPEN_FILES: Final = 32
_LIBRARY: Final = "turbo210"
_MESSAGE_BYTES: Final = 200

OK: Final = b"\0"
FAILED: Final = b"\1"
HEAD: Final = struct.Struct("<IB")
SIZE: Final = struct.Struct("<II")
TEXT: Final = struct.Struct("<H")


class Reader(Protocol):
    """The native call: path, then buffers to fill; 0 means failure."""

    def __call__(self, *arguments: object) -> int:
        """Read the coefficients of a file."""


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not become part of an answer
    read = _native_reader()
    _limit()
    with os.fdopen(os.dup(0), "rb") as requests, answers:
        answers.write(OK)
        answers.flush()
        while head := requests.read(HEAD.size):
            length, count = HEAD.unpack(head)
            blocks = [SIZE.unpack(requests.read(SIZE.size)) for _ in range(count)]
            for part in _answer(read, requests.read(length), blocks):
                answers.write(part)
            answers.flush()


def _native_reader() -> Reader:
    from jpeglib import version

    version.set(_LIBRARY)
    # The public reader decodes each file twice and leaves copies of it on disk when it is killed.
    library: ctypes.CDLL = version._get_lib()
    read: Reader = library.read_jpeg_dct
    return read


def _limit() -> None:
    for name, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        resource.setrlimit(name, (most, most))


def _allow_cpu() -> None:
    """Give one file its own processor time; beyond it the kernel ends this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = math.ceil(usage.ru_utime + usage.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_S, resource.RLIM_INFINITY))


def _answer(read: Reader, data: bytes, blocks: list[tuple[int, int]]) -> Iterator[Part]:
    _allow_cpu()
    said = os.fstat(2).st_size
    coefficients = [(ctypes.c_int16 * (64 * rows * columns))() for rows, columns in blocks]
    tables = (ctypes.c_uint16 * (4 * 64))()
    numbers = (ctypes.c_int16 * 4)()
    buffers = [*coefficients, *[None] * (4 - len(coefficients))]
    with _in_memory(data) as path:
        status = read(path.encode(), *buffers, tables, numbers)
    complaint = os.pread(2, _MESSAGE_BYTES, said)
    if status == 0 or complaint or not all(0 <= n < 4 for n in numbers[: len(blocks)]):
        text = complaint or b"the file cannot be decoded"
        yield from (FAILED, TEXT.pack(len(text)), text)
        return
    yield OK
    for number, plane in zip(numbers, coefficients, strict=False):
        yield from (plane, bytes(memoryview(tables).cast("B")[128 * number : 128 * number + 128]))


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Give the bytes a path without a file on disk."""
    fd = os.memfd_create("jpeg")
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
