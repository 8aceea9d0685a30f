"""Reads requests and answers them; see the package's documentation."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from . import confine  # noqa: TID251
from .frames import Frame, FrameError, decode, encode  # noqa: TID251
from .refusals import Refusal  # noqa: TID251

Verbs: TypeAlias = Mapping[str, Callable[[Frame], Frame]]

_TEXT: Final = 400
_FILE_BYTES: Final = 1 << 31
_CHUNK: Final = 1 << 24


def main() -> None:
    """Answer requests until the input ends."""
    own = str(Path(__file__).resolve().parent.parent)
    sys.path[:] = [folder for folder in sys.path if folder != own]  # it holds other names, too
    answers, requests = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)  # what a library prints must not become part of an answer
    limits = json.loads(sys.argv[2])
    confine.end_with_parent()
    confine.limit(memory_bytes=limits["memory_bytes"], file_bytes=_FILE_BYTES)
    confine.allow_cpu(limits["cpu_s"])
    offline = confine.cut_network()
    warnings.simplefilter("ignore")
    # A CUDA build of torch finds stand-ins for libraries: their functions are bound when called.
    sys.setdlopenflags(os.RTLD_LAZY)
    verbs, versions = _verbs(sys.argv[1])
    _write(answers, Frame({"ready": sys.argv[1], "offline": offline, "versions": versions}))
    while (request := _next(requests, limits["frame_bytes"])) is not None:
        confine.allow_cpu(limits["cpu_s"])
        _write(answers, _answer(verbs, request))


def _verbs(role: str) -> tuple[Verbs, dict[str, str]]:
    """Load what a role needs, and nothing else."""
    if role == "builder":
        from . import builder  # noqa: TID251

        return builder.Builder().verbs(), builder.versions()
    if role == "client":
        from . import client  # noqa: TID251

        return client.Client().verbs(), {}
    if role == "server":
        from . import server  # noqa: TID251

        return server.Server().verbs(), {}
    raise SystemExit(f"there is no role {role}")


def _answer(verbs: Verbs, request: Frame) -> Frame:
    verb = request.fields.get("verb")
    if not isinstance(verb, str) or verb not in verbs:
        return _failed("malformed", "there is no such verb")
    try:
        return verbs[verb](request)
    except Refusal as error:
        return _failed(error.kind, str(error))
    except MemoryError:
        return _failed("memory", "the memory limit of the worker is reached")
    except (FrameError, KeyError, TypeError, IndexError, AttributeError) as error:
        return _failed("malformed", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001
        return _failed("library", f"{type(error).__name__}: {error}")


def _failed(kind: str, text: str) -> Frame:
    return Frame({"error": kind, "text": text[:_TEXT]})


def _next(requests: BinaryIO, most: int) -> Frame | None:
    """Return the next request, or None when the input ends between two."""
    ahead = requests.read(1)
    if not ahead:
        return None

    def read(count: int) -> bytes:
        nonlocal ahead
        parts = [ahead]
        count -= len(ahead)
        ahead = b""
        while count:
            part = requests.read(min(count, _CHUNK))
            if not part:
                raise SystemExit("the input ended in the middle of a request")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    try:
        return decode(read, limit=most)
    except FrameError as error:
        raise SystemExit(f"the request is no frame: {error}") from error


def _write(answers: BinaryIO, frame: Frame) -> None:
    for buffer in encode(frame):
        answers.write(buffer)
    answers.flush()


if __name__ == "__main__":
    main()
