"""SecretFlow SPU 0.9.5 as a peer: two processes on loopback time encoder workloads.

Runs in the peer's environment::

    python spu_layer.py --cases layer_minilm,gelu --repeats 3     # one JSON document on stdout
    python spu_layer.py --serve                                   # one JSON line per command line

Rank 0 is the server with the weights, rank 1 the client with the input; protocol semi2k over
Z_2^64 with SPU's default 18 fractional bits, SPU's own link over loopback, its default thread use.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from statistics import median

TRUST = (
    "2pc semi-honest | semi2k | triples from a trusted first party: rank 0 deals them inside the "
    "timed run, so cost of a dealer but no protection from rank 0"
)
SETTINGS = {
    "tuned": "piecewise GELU and x / broadcast(y) as x * broadcast(1 / y), as in SPU's examples",
    "plain": "jax.nn.gelu (tanh form) and default compiler options",
}
NAMES = ("matmul", "gelu", "softmax", "layer_minilm", "layer_bert_base")


class PartyFailed(Exception):
    """One of the two processes ended or reported an error; the text ends with its log."""


class Parties:
    """The two processes; every command goes to both and returns when both have answered."""

    def __init__(self, settings: str, limit_s: float) -> None:
        self._logs = tempfile.TemporaryDirectory(prefix="spu-")
        ports = ",".join(map(str, _free_ports(2)))
        party = [sys.executable, str(Path(__file__).resolve().with_name("spu_party.py"))]
        self._processes = [self._start([*party, str(r), ports, settings], r) for r in range(2)]
        self._timer = threading.Timer(limit_s, self._kill)
        self._timer.daemon = True
        self._timer.start()

    def _start(self, command: list[str], rank: int) -> subprocess.Popen[str]:
        with self._log(rank).open("w") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                cwd=self._logs.name,
            )  # fmt: skip

    def _log(self, rank: int) -> Path:
        return Path(self._logs.name) / f"rank{rank}.log"

    def ask(self, **command: object) -> list[dict[str, object]]:
        """Send `command` to both parties and return their answers by rank."""
        for process in self._processes:
            self._write(process, json.dumps(command) + "\n")
        return [self._answer(rank) for rank in range(2)]

    def _write(self, process: subprocess.Popen[str], line: str) -> None:
        if process.stdin is None or process.poll() is not None:
            return  # the missing answer says so
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return

    def _answer(self, rank: int) -> dict[str, object]:
        stdout = self._processes[rank].stdout
        line = stdout.readline() if stdout else ""
        if not line:
            with suppress(subprocess.TimeoutExpired):  # let it finish its last words
                self._processes[rank].wait(timeout=5)
            self._kill()
            tail = self._log(rank).read_text(errors="replace").splitlines()[-3:]
            raise PartyFailed(f"SPU party {rank} ended without an answer: {' / '.join(tail)}")
        answer = json.loads(line)
        return dict(answer)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """End both processes."""
        self._timer.cancel()
        for process in self._processes:
            self._write(process, json.dumps({"do": "quit"}) + "\n")
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._logs.cleanup()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def prepare(parties: Parties, case: str) -> dict[str, object]:
    """Compile, share the inputs, run once with counters on, check the output."""
    server, client = parties.ask(do="prepare", case=case)
    return {
        "case": case,
        "compile_s": client["compile_s"],
        "share_inputs_s": client["share_inputs_s"],
        "server_sent_bytes": server["sent_bytes"],
        "client_sent_bytes": client["sent_bytes"],
        "messages": client["messages"],
        "max_abs_error": client["max_abs_error"],
    }


def run_once(parties: Parties, case: str) -> float:
    """Return the wall seconds of one run, barrier to barrier, at the slower party."""
    return max(float(str(answer["seconds"])) for answer in parties.ask(do="run", case=case))


def facts(settings: str) -> dict[str, object]:
    """Return what a reader needs to judge the numbers."""
    return {
        "peer": "SecretFlow SPU 0.9.5",
        "protocol": "SEMI2K, FM64, 18 fractional bits, 2 processes, brpc over loopback",
        "trust": TRUST,
        "settings": f"{settings}: {SETTINGS[settings]}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }


def measure(parties: Parties, settings: str, names: list[str], repeats: int) -> dict[str, object]:
    """Return the document of the one-shot form."""
    rows = []
    for name in names:
        print(f"SPU {settings}: {name}", file=sys.stderr, flush=True)
        row = prepare(parties, name)
        seconds = [run_once(parties, name) for _ in range(repeats)]
        row |= {"seconds": seconds, "median_s": median(seconds)}
        rows.append(row)
    return {**facts(settings), "load_average": os.getloadavg(), "cases": rows}


def serve(parties: Parties, settings: str) -> None:
    """Answer ``{"do": "prepare" | "run", "case": name}`` lines until ``quit`` or end of input."""
    print(json.dumps(facts(settings)), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "quit":
            return
        if command["do"] == "prepare":
            print(json.dumps(prepare(parties, command["case"])), flush=True)
        else:
            print(json.dumps({"seconds": run_once(parties, command["case"])}), flush=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", default=",".join(NAMES), help="comma-separated names")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--settings", choices=sorted(SETTINGS), default="tuned")
    parser.add_argument("--serve", action="store_true", help="commands on stdin")
    parser.add_argument("--limit-s", type=float, default=900.0, help="give up after so long")
    options = parser.parse_args()
    names = options.cases.split(",")
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"unknown cases {', '.join(unknown)}; there are {', '.join(NAMES)}")
    parties = Parties(options.settings, options.limit_s)
    try:
        if options.serve:
            serve(parties, options.settings)
        else:
            print(json.dumps(measure(parties, options.settings, names, options.repeats), indent=1))
    except PartyFailed as error:
        print(f"spu_layer: {error}", file=sys.stderr)
        return 1
    finally:
        parties.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
