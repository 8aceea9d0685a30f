"""Frames between privml and its worker: round trips, and hostile bytes in both directions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import (
    DeadlineExceeded,
    MalformedMessage,
    ParameterError,
    PeerAborted,
    UnsupportedError,
)
from privml.protocols.fhe.concrete_ml import process
from privml.protocols.fhe.concrete_ml.environment import Environment, Record
from privml.protocols.fhe.concrete_ml.process import Limits, Role, Worker
from privml.protocols.fhe.concrete_ml.worker import frames
from privml.protocols.fhe.concrete_ml.worker.frames import (
    HEAD,
    MAGIC,
    VERSION,
    Frame,
    FrameError,
    decode,
    encode,
)

pytestmark = pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice")

CAP = 1 << 16
PACKAGE = Path(process.__file__).parent


class Short(Exception):
    """The bytes ended too early or too late."""


def decoded(data: bytes, limit: int = CAP) -> Frame:
    """Decode bytes, counting what the codec asks for."""
    place = 0

    def read(count: int) -> bytes:
        nonlocal place
        assert 0 <= count <= max(limit, frames.MAX_JSON_BYTES, HEAD.size)
        if place + count > len(data):
            raise Short
        place += count
        return data[place - count : place]

    frame = decode(read, limit=limit)
    if place != len(data):
        raise Short
    return frame


def joined(frame: Frame) -> bytes:
    return b"".join(bytes(part) for part in encode(frame))


def raw(fields: bytes, payload: bytes = b"", *, count: int = 0) -> bytes:
    return HEAD.pack(MAGIC, VERSION, 0, count, len(fields), len(payload)) + fields + payload


SAMPLE = Frame(
    {"verb": "build", "bits": 6, "p": 0.5, "deep": {"a": [None, True]}},
    {"rows": np.arange(6.0).reshape(2, 3), "left": np.array([1, -1]), "key": frames.blob(b"xyz")},
)


SHAPES = st.lists(st.integers(0, 3), max_size=4)


@given(
    st.dictionaries(st.text(max_size=8), st.integers(-(2**53), 2**53) | st.text(), max_size=4),
    st.lists(st.tuples(st.sampled_from(["f8", "i8", "u1"]), SHAPES), max_size=4),
)
def test_frames_come_back(fields: dict[str, object], shapes: list[tuple[str, list[int]]]) -> None:
    fields.pop("arrays", None)
    arrays = {
        str(n): np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(code)
        for n, (code, shape) in enumerate(shapes)
    }
    back = decoded(joined(Frame(fields, arrays)))
    assert back.fields == fields
    assert {k: (v.tolist(), v.shape) for k, v in back.arrays.items()} == {
        k: (v.tolist(), v.shape) for k, v in arrays.items()
    }


def test_arrays_in_another_memory_order_keep_their_meaning() -> None:
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))[::2]
    assert (decoded(joined(Frame({}, {"a": array}))).arrays["a"] == array).all()


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.array(["a"]), np.zeros((1,) * 5), np.zeros(2, np.float32)],
    ids=["object", "text", "axes", "type"],
)
def test_what_is_no_plain_array_is_not_sent(array: np.ndarray) -> None:
    with pytest.raises(FrameError):
        encode(Frame({}, {"a": array}))


@pytest.mark.parametrize("fields", [{"a": float("nan")}, {"a": b"x"}, {"a": object()}])
def test_fields_that_are_no_json_are_not_sent(fields: dict[str, object]) -> None:
    with pytest.raises(FrameError):
        encode(Frame(fields))


HOSTILE = {
    "magic": b"XVCM" + joined(SAMPLE)[4:],
    "version": joined(SAMPLE)[:4] + b"\x02" + joined(SAMPLE)[5:],
    "reserved": joined(SAMPLE)[:5] + b"\x01" + joined(SAMPLE)[6:],
    "huge json": HEAD.pack(MAGIC, VERSION, 0, 0, 2**32 - 1, 0),
    "huge payload": HEAD.pack(MAGIC, VERSION, 0, 1, 2, 2**63 - 1) + b"{}",
    "payload over the cap": HEAD.pack(MAGIC, VERSION, 0, 0, 2, CAP + 1) + b"{}",
    "many arrays": HEAD.pack(MAGIC, VERSION, 0, 65535, 2, 0) + b"{}",
    "no json": raw(b"\xff\xfe"),
    "no object": raw(b"[]"),
    "no list": raw(b"{}"),
    "nan": raw(b'{"arrays": [], "a": NaN}'),
    "infinity": raw(b'{"arrays": [], "a": -Infinity}'),
    "twice": raw(b'{"arrays": [], "a": 1, "a": 2}'),
    "deep": raw(b"[" * 100_000),
    "long number": raw(b'{"arrays": [], "a": ' + b"9" * 5000 + b"}"),
    "count": raw(b'{"arrays": [["a", "u1", [1]]]}', b"x"),
    "entry": raw(b'{"arrays": [["a", "u1"]]}', b"x", count=1),
    "entry type": raw(b'{"arrays": [7]}', b"x", count=1),
    "name": raw(b'{"arrays": [[1, "u1", [1]]]}', b"x", count=1),
    "same name": raw(b'{"arrays": [["a","u1",[1]],["a","u1",[1]]]}', b"xx", count=2),
    "object type": raw(b'{"arrays": [["a", "O", [1]]]}', b"x" * 8, count=1),
    "type list": raw(b'{"arrays": [["a", ["u1"], [1]]]}', b"x", count=1),
    "shape text": raw(b'{"arrays": [["a", "u1", "1"]]}', b"x", count=1),
    "negative": raw(b'{"arrays": [["a", "u1", [-1, -1]]]}', b"x", count=1),
    "boolean": raw(b'{"arrays": [["a", "u1", [true]]]}', b"x", count=1),
    "float size": raw(b'{"arrays": [["a", "u1", [1.0]]]}', b"x", count=1),
    "overflow": raw(b'{"arrays": [["a", "u1", [4294967296, 4294967296, 0]]]}', b"x", count=1),
    "five axes": raw(b'{"arrays": [["a", "u1", [1, 1, 1, 1, 1]]]}', b"x", count=1),
    "short": raw(b'{"arrays": [["a", "u1", [2]]]}', b"x", count=1),
    "long": raw(b'{"arrays": [["a", "u1", [1]]]}', b"xx", count=1),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_frames_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decoded(data)


def test_every_cut_is_noticed() -> None:
    data = joined(SAMPLE)
    for end in range(len(data)):
        with pytest.raises((Short, FrameError)):
            decoded(data[:end])


def test_changed_bits_never_raise_anything_else(rng: np.random.Generator) -> None:
    data = joined(SAMPLE)
    head = HEAD.size + 120
    for bit in range(8 * min(head, len(data))):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            decoded(bytes(changed))
        except (Short, FrameError):
            continue
    for _ in range(2000):
        noise = rng.integers(0, 256, rng.integers(0, 200), dtype=np.uint8).tobytes()
        with pytest.raises((Short, FrameError)):
            decoded(noise)
        with pytest.raises((Short, FrameError)):
            decoded(MAGIC + b"\x01\x00" + noise)


# A worker that sends what its first argument says: the real process, the real pipe, no concrete-ml.
PLAYER = """\
import json, os, sys, time
os.write(1, bytes.fromhex(open(os.environ["PYTHONPATH"] + "/ready.hex").read()))
head = b""
while len(head) < 20:
    part = os.read(0, 20 - len(head))
    if not part:
        sys.exit(0)
    head += part
act = open(os.environ["PYTHONPATH"] + "/act.txt").read()
if act == "hang":
    time.sleep(60)
elif act == "die":
    sys.stderr.write("out of luck")
    sys.exit(7)
elif act == "kill":
    os.kill(os.getpid(), 9)
else:
    os.write(1, bytes.fromhex(act))
    time.sleep(60 if act else 0)
"""


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an environment whose worker program is the player."""
    package = tmp_path / "worker"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(PLAYER)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "ready.hex").write_text(joined(Frame({"ready": "server", "offline": True})).hex())
    monkeypatch.setattr(process, "__file__", str(tmp_path / "process.py"))
    return tmp_path


def started(folder: Path, act: str, **limits: float) -> Worker:
    (folder / "act.txt").write_text(act)
    environment = Environment(folder, Record("", "", stand_ins=False))
    return Worker(Role.SERVER, environment=environment, limits=Limits(**{"call_s": 20, **limits}))


@pytest.mark.parametrize("name", ["magic", "huge payload", "deep", "object type", "same name"])
def test_a_hostile_worker_is_ended(player: Path, name: str) -> None:
    with started(player, HOSTILE[name][:60_000].hex()) as worker:
        folder = worker.folder
        with pytest.raises((MalformedMessage, DeadlineExceeded)):
            worker.call("run")
        assert "ended" in repr(worker)
        assert not folder.exists()


@pytest.mark.parametrize(
    ("act", "said"),
    [
        # it dies once it has read the head of the request, before or after the rest is written
        ("die", "code 7; it (did not answer run|took no request): out of luck"),
        ("kill", "killed"),
        ("", "code 0"),
    ],
)
def test_a_worker_that_dies_says_how(player: Path, act: str, said: str) -> None:
    with started(player, act) as worker, pytest.raises(PeerAborted, match=said):
        worker.call("run")


def test_a_worker_that_hangs_is_ended_in_time(player: Path) -> None:
    with (
        started(player, "hang", call_s=0.3) as worker,
        pytest.raises(DeadlineExceeded, match="call_s"),
    ):
        worker.call("run")


def test_a_request_that_is_not_read_does_not_block_for_ever(player: Path) -> None:
    big = {"a": np.zeros(1 << 21, np.uint8)}
    with started(player, "hang", call_s=0.5) as worker, pytest.raises(DeadlineExceeded):
        worker.call("run", arrays=big)


def test_half_an_answer_is_not_taken_for_the_next_one(player: Path) -> None:
    half = joined(SAMPLE)[:-2]
    with started(player, half.hex(), call_s=0.5) as worker:
        with pytest.raises(DeadlineExceeded):
            worker.call("run")
        with pytest.raises(Exception, match="has ended"):
            worker.call("run")


@pytest.mark.parametrize(
    ("kind", "error"),
    [("parameter", ParameterError), ("unsupported", UnsupportedError), ("?", Exception)],
)
def test_refusals_of_a_worker_become_our_errors(
    player: Path, kind: str, error: type[Exception]
) -> None:
    refusal = Frame({"error": kind, "text": "no\x1b[2J such\nthing" + "x" * 9999})
    with started(player, joined(refusal).hex()) as worker:
        with pytest.raises(error) as caught:
            worker.call("run")
        text = str(caught.value)
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) < 600


def test_a_worker_that_does_not_start_says_why(player: Path) -> None:
    (player / "ready.hex").write_text("00" * 20)
    with pytest.raises(UnsupportedError, match="does not start"):
        started(player, "")


def test_what_cannot_be_sent_is_a_parameter_error(player: Path) -> None:
    with started(player, "hang") as worker, pytest.raises(ParameterError):
        worker.call("run", {"x": float("nan")})


@pytest.mark.parametrize("limits", [{"call_s": 0}, {"frame_bytes": 0}, {"memory_bytes": -1}])
def test_limits_are_positive(limits: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        Limits(**limits)


def test_the_real_program_refuses_hostile_requests_without_a_traceback_of_ours() -> None:
    """Its loop needs no concrete-ml: an unknown role ends before any library is loaded."""
    limits = json.dumps({"memory_bytes": 1 << 32, "cpu_s": 20, "frame_bytes": CAP})
    done = subprocess.run(
        [sys.executable, "-s", "-P", "-m", "worker", "other", limits],
        env={"PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"},
        input=b"", capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"there is no role other" in done.stderr
