"""One party of the SPU peer: ``spu_party.py RANK PORT,PORT SETTINGS``, commands on stdin.

Answers go to the original stdout; everything SPU prints goes to stderr, from where the byte
counters of the one profiled run are read.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import spu
import spu.utils.frontend as frontend
from spu import libspu
from spu_cases import Case, cases

FRACTION_BITS = 18  # SPU's default for FM64
PATIENCE_MS = 300_000
TOTALS = re.compile(r"total send bytes (\d+), recv bytes (\d+), send actions (\d+)")


@contextmanager
def captured(lines: list[str]) -> Iterator[None]:
    """Collect what SPU logs on file descriptors 1 and 2 meanwhile."""
    with tempfile.TemporaryFile() as log:
        kept = [(fd, os.dup(fd)) for fd in (1, 2)]
        for fd, _ in kept:
            os.dup2(log.fileno(), fd)
        try:
            yield
        finally:
            for fd, copy in kept:
                os.dup2(copy, fd)
                os.close(copy)
            log.seek(0)
            lines += log.read().decode(errors="replace").splitlines()


def packed(share: libspu.Share) -> bytes:
    """Return a share as bytes: JSON line of the lengths, then the parts."""
    parts = [bytes(share.meta), *(bytes(chunk) for chunk in share.share_chunks)]
    return json.dumps([len(part) for part in parts]).encode() + b"\n" + b"".join(parts)


def unpacked(data: bytes) -> libspu.Share:
    """Invert :func:`packed`."""
    head, _, body = data.partition(b"\n")
    parts, start = [], 0
    for length in json.loads(head):
        parts.append(body[start : start + length])
        start += length
    share = libspu.Share()
    share.meta, share.share_chunks = parts[0], parts[1:]
    return share


class Party:
    """A rank with its link and two runtimes: one for timing, one with counters on."""

    def __init__(self, rank: int, ports: list[int], *, tuned: bool) -> None:
        self.rank = rank
        self.cases = cases(tuned=tuned)
        description = libspu.link.Desc()
        description.recv_timeout_ms = PATIENCE_MS
        for other, port in enumerate(ports):
            description.add_party(f"party{other}", f"127.0.0.1:{port}")
        self.link = libspu.link.create_brpc(description, rank)
        self.options = libspu.CompilerOptions()
        self.options.enable_optimize_denominator_with_broadcast = tuned
        self.io = spu.Io(2, self._config(profile=False))
        self.timing = spu.Runtime(self.link, self._config(profile=False))
        self.counting = spu.Runtime(self.link.spawn(), self._config(profile=True))
        self.programs: dict[str, libspu.Executable] = {}

    @staticmethod
    def _config(*, profile: bool) -> libspu.RuntimeConfig:
        config = libspu.RuntimeConfig(
            protocol=libspu.ProtocolKind.SEMI2K,
            field=libspu.FieldType.FM64,
            fxp_fraction_bits=FRACTION_BITS,
        )
        config.enable_pphlo_profile = profile
        return config

    def prepare(self, name: str) -> dict[str, object]:
        """Compile, share the inputs, run once with counters on, compare with numpy."""
        case, started = self.cases[name], time.perf_counter()
        inputs = case.inputs()
        labels = [f"{name}.{i}" for i in range(len(inputs))]
        secret = [libspu.Visibility.VIS_SECRET] * len(inputs)
        program, _ = frontend.compile(
            frontend.Kind.JAX, case.program, inputs, {}, labels, secret,
            lambda flat: [f"{name}.out{i}" for i in range(len(flat))], copts=self.options,
        )  # fmt: skip
        self.programs[name] = program
        compiled = time.perf_counter()
        for i, (label, value) in enumerate(zip(labels, inputs, strict=True)):
            share = self._share(1 if i == 0 else 0, value)
            self.timing.set_var(label, share)
            self.counting.set_var(label, share)
        shared = time.perf_counter()
        log: list[str] = []
        with captured(log):
            self.counting.run(program)
        found = [match for line in log if (match := TOTALS.search(line))]
        if not found:
            raise RuntimeError("SPU did not report its link totals")
        sent, _, messages = map(int, found[-1].groups())
        return {
            "compile_s": compiled - started,
            "share_inputs_s": shared - compiled,
            "sent_bytes": sent,
            "messages": messages,
            "max_abs_error": self._error(case, inputs, program),
        }

    def _share(self, owner: int, value: np.ndarray) -> libspu.Share:
        if self.rank != owner:
            return unpacked(self.link.recv(owner))
        shares = self.io.make_shares(value, libspu.Visibility.VIS_SECRET)
        self.link.send(1 - owner, packed(shares[1 - owner]))
        return shares[owner]

    def _error(
        self, case: Case, inputs: list[np.ndarray], program: libspu.Executable
    ) -> float | None:
        """Open the output to the client and return its largest error there."""
        mine = self.counting.get_var(program.output_names[0])
        if self.rank == 0:
            self.link.send(1, packed(mine))
            return None
        got = self.io.reconstruct([unpacked(self.link.recv(0)), mine])
        want = case.reference(*(value.astype(np.float64) for value in inputs))
        return float(np.abs(got - want).max())

    def run(self, name: str) -> dict[str, object]:
        """Return the wall seconds of one run from barrier to barrier."""
        self.link.barrier()
        started = time.perf_counter()
        self.timing.run(self.programs[name])
        self.link.barrier()
        return {"seconds": time.perf_counter() - started}


def main() -> int:
    """Serve commands until ``quit`` or the end of input."""
    rank, ports, settings = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SPU logs to stdout too
    party = Party(rank, [int(port) for port in ports], tuned=settings == "tuned")
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "quit":
            break
        act = party.prepare if command["do"] == "prepare" else party.run
        answer = act(command["case"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    party.link.stop_link()
    return 0


if __name__ == "__main__":
    sys.exit(main())
