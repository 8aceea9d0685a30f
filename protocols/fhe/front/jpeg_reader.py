"""Reads the coefficients of untrusted JPEG files through a child process with limits."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

import privml
from privml._typing import Bytes
from privml.errors import MalformedMessage, UnsupportedError, internal
from privml.protocols.fhe.front import jpeg_child
from privml.protocols.fhe.front.blocks import Plane, from_cells
from privml.protocols.fhe.front.components import Component, Image
from privml.protocols.fhe.front.jpeg_file import Layout, inspect

LIMIT_S: Final = 30.0
"""Longest wait for one file."""

START_S: Final = 60.0
"""Longest wait for the process to start."""

_MODULE: Final = "privml.protocols.fhe.front.jpeg_child"
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "SYSTEMROOT")
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_TABLE_BYTES: Final = 128
_CHUNK: Final = 1 << 16


class JpegReader:
    """A child process that reads many files; use it in a ``with`` block.

    The process starts with the first file and again after a file has ended it. Not for use by
    several threads at once.

    Parameters
    ----------
    limit_s
        Longest wait for one file.
    """

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log = -1

    def read(self, data: Bytes) -> Image:
        """Return the dequantised coefficients of one file.

        Parameters
        ----------
        data
            The whole file, baseline or progressive, grey or luma and chroma.

        Returns
        -------
        Image
            Components in blocks of 8, each dequantised by its own table.

        Raises
        ------
        MalformedMessage
            Broken or truncated, or it took the native parser too much time or memory.
        UnsupportedError
            A kind of file that is not read, or the package ``jpeglib`` is missing.
        """
        layout, needed = inspect(data)
        process = self._running()
        try:
            self._send(process, layout, needed)
            return self._receive(process, layout)
        except BrokenPipeError as error:
            raise MalformedMessage(f"the JPEG parser ended{self._stop()}") from error
        except MalformedMessage:
            raise  # the answer was read whole, or the process was ended
        except BaseException:
            self._stop()  # half an answer must not be taken for the next one
            raise

    def close(self) -> None:
        """End the process; a later file starts a new one."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._stop()
            if find_spec("jpeglib") is None:
                raise UnsupportedError(
                    "reading coefficients of JPEG files needs the package jpeglib: install "
                    "'privml[jpeg]', or decode the image and use from_array"
                )
            self._log = os.memfd_create("jpeg-log")
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", _MODULE],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
                env=_environment(), start_new_session=True,
            )  # fmt: skip
            self._await_start(self._process)
        return self._process

    def _await_start(self, process: subprocess.Popen[bytes]) -> None:
        try:
            self._take(process, 1, time.monotonic() + START_S)
        except MalformedMessage as error:
            raise UnsupportedError(
                f"the JPEG parser cannot start: {error}; install 'privml[jpeg]' again, or decode "
                "the image and use from_array"
            ) from None

    def _stop(self) -> str:
        """End the process and return how it ended, for a message."""
        process, self._process = self._process, None
        if process is None:
            return ""
        process.kill()
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        said = _printable(os.pread(self._log, 200, max(os.fstat(self._log).st_size - 200, 0)))
        os.close(self._log)
        return f" (code {code}{': ' + said if said else ''})"

    def _send(self, process: subprocess.Popen[bytes], layout: Layout, data: bytes) -> None:
        head = jpeg_child.HEAD.pack(len(data), len(layout.blocks))
        sizes = b"".join(jpeg_child.SIZE.pack(*size) for size in layout.blocks)
        internal(process.stdin is not None, "the child has an input")
        left = memoryview(head + sizes + data)
        while left and process.stdin is not None:
            left = left[process.stdin.write(left) or 0 :]

    def _receive(self, process: subprocess.Popen[bytes], layout: Layout) -> Image:
        end = time.monotonic() + self._limit_s
        if self._take(process, 1, end) != jpeg_child.OK:
            (length,) = jpeg_child.TEXT.unpack(self._take(process, jpeg_child.TEXT.size, end))
            said = _printable(self._take(process, length, end))
            raise MalformedMessage(f"the JPEG file is broken: {said}")
        parts = []
        for (rows, columns), samples, halved in zip(
            layout.blocks, layout.samples, layout.halved, strict=True
        ):
            raw = self._take(process, 128 * rows * columns, end)
            table = np.frombuffer(self._take(process, _TABLE_BYTES, end), "<u2").reshape(8, 8)
            blocks = np.frombuffer(raw, "<i2").reshape(rows, columns, 8, 8)
            parts.append(Component(_plane(blocks * table.astype(np.float64)), samples, halved))
        return Image(layout.shape, tuple(parts))

    def _take(self, process: subprocess.Popen[bytes], count: int, end: float) -> bytes:
        """Read exactly ``count`` bytes of an answer before ``end``."""
        internal(process.stdout is not None, "the child has an output")
        parts: list[bytes] = []
        while count and process.stdout is not None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise MalformedMessage(f"the JPEG parser took too long{self._stop()}")
            part = process.stdout.read(min(count, _CHUNK))
            if not part:
                raise MalformedMessage(f"the JPEG parser ended{self._stop()}")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _plane(blocks: Plane) -> Plane:
    """Return the coefficient plane of blocks (block row, block column, vertical, horizontal)."""
    return from_cells(blocks.transpose(2, 3, 0, 1))


def _printable(raw: bytes) -> str:
    text = raw.decode("ascii", "replace").strip()
    return "".join(c if c.isprintable() else " " for c in text)[:200]


def _environment() -> dict[str, str]:
    """Return a small environment: the same privml first on the path, one thread."""
    home = str(Path(privml.__file__).parent.parent)
    path = os.pathsep.join(p for p in (home, os.environ.get("PYTHONPATH", "")) if p)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": path}
