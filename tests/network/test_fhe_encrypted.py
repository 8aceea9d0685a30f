"""Real ciphertexts between real processes: no secret key in any frame or file, right scores.

The circuits have three tables and parameters for rare faults; all of it together takes seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from privml.errors import (
    ClaimTooWeak,
    DeadlineExceeded,
    ProtocolError,
    StorageError,
    UnsupportedError,
    UntrustedArtifact,
)
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.building import build
from privml.protocols.fhe.bundle import ServerPart, read_client, read_server
from privml.protocols.fhe.client import Address
from privml.protocols.fhe.launcher import Launcher, Limits
from privml.protocols.fhe.manifest import Manifest
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.parties import Artefact, Server
from privml.protocols.fhe.secrets_scan import holds_secret_keys
from privml.protocols.fhe.service import Service
from privml.protocols.fhe.sides import FheClient, FheServer
from privml.testing.integer_graphs import random_images
from privml.testing.tiny_graphs import vector_graph
from privml.transport.channel import Channel, Counters
from privml.transport.identity import Identity

pytestmark = [
    pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing())),
    pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice"),
]
ROOT = Path(__file__).resolve().parents[2]
RARE = 2.0**-30  # of a wrong table: none in the life of these tests
GRAPH = vector_graph(3, 2)
PATHS = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def _pipes_break_softly() -> None:
    """Undo what tests of the bare library leave in this process: a handler that ends it."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


@dataclass(frozen=True)
class World:
    """One operator with one program, and one client with keys."""

    folder: Path
    operator: Identity
    ann: Identity
    manifest: Manifest
    server: ServerPart
    client: FheClient
    keys: bytes

    @property
    def trusted(self) -> set[str]:
        return {str(self.operator.fingerprint)}

    @property
    def images(self) -> Ints:
        return random_images(GRAPH, 4, seed=1)[2:]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    operator, ann = (Identity.generate(folder / "certs", name) for name in ("operator", "ann"))
    manifest, _ = build(GRAPH, folder / "bundles", identity=operator, p_error=RARE)
    trusted = {str(operator.fingerprint)}
    part = read_server(folder / "bundles" / "server", trusted=trusted)
    client = FheClient(read_client(folder / "bundles" / "client", trusted=trusted))
    keys = client.keygen()
    client.save_keys(folder / "ring")
    return World(folder, operator, ann, manifest, part, client, keys)


class Recorder(Channel):
    """Keeps all that crosses, before TLS encrypts it and after it is decrypted."""

    def __init__(self, inner: Channel, kept: list[bytes]) -> None:
        self.secure, self.kept, self._inner = inner.secure, kept, inner
        self.local_fingerprint = inner.local_fingerprint
        self.peer_fingerprint = inner.peer_fingerprint

    @property
    def counters(self) -> Counters:
        return self._inner.counters

    def try_send(self, data: memoryview) -> int:
        count = self._inner.try_send(data)
        self.kept.append(bytes(data[:count]))
        return count

    def try_recv_into(self, out: memoryview) -> int:
        count = self._inner.try_recv_into(out)
        self.kept.append(bytes(out[:count]))
        return count

    def flush(self) -> bool:
        return self._inner.flush()

    def wait(self, *, read: bool, write: bool, timeout_s: float) -> None:
        self._inner.wait(read=read, write=write, timeout_s=timeout_s)

    def close(self) -> None:
        self._inner.close()


def test_no_secret_key_in_any_frame_or_file_of_the_server(world: World, tmp_path: Path) -> None:
    kept: list[bytes] = []
    with Service(
        [world.server], identity=world.operator, pins=[world.ann.fingerprint],
        state=tmp_path / "state",
    ) as service:  # fmt: skip
        service.start()
        address = Address("127.0.0.1", service.port, world.ann, str(world.operator.fingerprint))
        work = world.client.work(address, world.images)
        work.dial = lambda: Recorder(address.dial(), kept)
        answer = work.run()
        stored = [path.read_bytes() for path in (tmp_path / "state").iterdir()]
        held = [*vars(service), *vars(service.keys), *vars(service.board)]
    assert (answer.integers == world.images).all()
    frames = b"".join(kept)
    secret = (world.folder / "ring" / "secret.keys").read_bytes()
    assert holds_secret_keys(secret)
    assert holds_secret_keys(secret[1000:])  # by its bits and not only by its first line
    assert world.keys in frames
    assert len(stored) == 1
    assert world.keys in stored[0]
    files = [p.read_bytes() for p in (world.folder / "bundles").rglob("*.*") if p.suffix != ".so"]
    for data in (frames, *stored, *files):
        assert not holds_secret_keys(data)
    assert not [name for name in held if "secret" in name or "decrypt" in name]


def test_two_clients_at_once_read_only_their_own_answers(world: World, tmp_path: Path) -> None:
    bob = Identity.generate(tmp_path / "certs", "bob")
    clients = {"ann": (world.ann, world.client), "bob": (bob, FheClient(world.client.part))}
    clients["bob"][1].keygen()
    images = {"ann": world.images, "bob": 3 - world.images}
    found = {}
    with Service(
        [world.server], identity=world.operator, state=tmp_path / "state",
        pins=[identity.fingerprint for identity, _ in clients.values()],
    ) as service:  # fmt: skip
        service.start()
        assert service.isolated or os.geteuid() != 0

        def ask(name: str) -> None:
            identity, client = clients[name]
            address = Address("127.0.0.1", service.port, identity, str(world.operator.fingerprint))
            work = client.work(address, images[name])
            found[name] = work.run(), work._answers

        threads = [threading.Thread(target=ask, args=(name,)) for name in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name, (answer, _) in found.items():
        assert (answer.integers == images[name]).all(), name
    other = clients["bob"][1].decrypt([found["ann"][1][i] for i in range(2)])
    assert (other.integers != images["ann"]).any()


@pytest.fixture(scope="module")
def launcher(world: World) -> Iterator[Launcher]:
    with Launcher(world.server.artefact, world.manifest) as running:
        yield running


def ask(launcher: Launcher, world: World, query: bytes | None = None) -> bytes:
    (own,) = world.client._client.encrypt(world.images[:1])
    return launcher.run(query or own, owner="ann", keys=lambda: world.keys)


def test_the_child_computes_and_knows_nothing_else(
    world: World, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2")
    launcher.close()
    answer = ask(launcher, world)
    assert (world.client.decrypt([answer]).integers == world.images[:1]).all()
    assert launcher._process is not None
    process = Path(f"/proc/{launcher._process.pid}")
    own = launcher._process.pid
    limits = {line[:26].strip(): line[26:].split()[0] for line in
              (process / "limits").read_text().splitlines()}  # fmt: skip
    assert limits["Max address space"] == str(launcher.limits.memory_bytes)
    assert limits["Max core file size"] == "0"
    assert int(limits["Max cpu time"]) <= launcher.limits.cpu_s + 30
    if os.geteuid() == 0:
        words = (process / "environ").read_bytes()
        assert b"hunter2" not in words
        assert b"PYTEST" not in words
    assert own != os.getpid()


def test_hostile_bytes_cost_a_refusal_and_not_the_server(world: World, launcher: Launcher) -> None:
    sizes = world.manifest.sizes
    for bad in (b"\0" * (sizes.query + 100), b"\xff" * (sizes.query + 100), b"\0" * sizes.query):
        with pytest.raises(ProtocolError):
            ask(launcher, world, bad)
        assert (world.client.decrypt([ask(launcher, world)]).integers == world.images[:1]).all()
    with pytest.raises(ProtocolError):
        launcher.run(b"x", owner="eve", keys=lambda: b"\1" * (sizes.keys + 100))
    ask(launcher, world)


def test_a_child_that_dies_is_started_again(world: World, launcher: Launcher) -> None:
    ask(launcher, world)
    assert launcher._process is not None
    os.kill(launcher._process.pid, signal.SIGKILL)
    launcher._process.wait()
    assert (world.client.decrypt([ask(launcher, world)]).integers == world.images[:1]).all()


def test_a_child_that_takes_too_long_is_ended(world: World) -> None:
    limits = replace(Limits.of(world.manifest), wall_s=0.05)
    with Launcher(world.server.artefact, world.manifest, limits=limits) as slow:
        slow.start()
        with pytest.raises(DeadlineExceeded, match="too long"):
            ask(slow, world)
        assert slow._process is None


def test_a_child_without_memory_refuses(world: World) -> None:
    limits = replace(Limits.of(world.manifest), memory_bytes=220 << 20)
    with (
        Launcher(world.server.artefact, world.manifest, limits=limits) as small,
        pytest.raises((ProtocolError, UnsupportedError), match=r"ended|allocate|load"),
    ):
        ask(small, world)


def test_only_the_program_of_the_manifest_is_loaded(world: World) -> None:
    files = {name: data + b" " for name, data in world.server.artefact.files.items()}
    with (
        Launcher(Artefact(files), world.manifest) as wrong,
        pytest.raises(UntrustedArtifact, match="recorded"),
    ):
        wrong.start()


def test_keys_of_few_clients_are_in_memory_at_once(world: World) -> None:
    asked: list[str] = []

    def keys(name: str) -> bytes:
        asked.append(name)
        return world.keys

    limits = replace(Limits.of(world.manifest), loaded_keys=1)
    (query,) = world.client._client.encrypt(world.images[:1])
    with Launcher(world.server.artefact, world.manifest, limits=limits) as running:
        for name in ("a", "a", "b", "a"):
            running.run(query, owner=name, keys=lambda name=name: keys(name))  # type: ignore[misc]
        running.forget("a")
        running.forget("nobody")
        running.run(query, owner="a", keys=lambda: keys("a"))
    assert asked == ["a", "b", "a", "a"]


def test_the_child_ends_with_its_parent_and_leaves_nothing(world: World, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from privml.protocols.fhe.bundle import read_server;"
        "from privml.protocols.fhe.launcher import Launcher;"
        "part = read_server(Path(sys.argv[1]), trusted=[sys.argv[2]]);"
        "child = Launcher(part.artefact, part.manifest); child.start();"
        "print(child._process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(world.folder / "bundles" / "server"),
         str(world.operator.fingerprint)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)
    assert not list(tmp_path.iterdir())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_computing_leaves_the_signals_of_the_process_alone(world: World) -> None:
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    server = Server(world.server.artefact, digest=world.manifest.program)
    (query,) = world.client._client.encrypt(world.images[:1])
    with server:
        server.run(query, server.load_keys(world.keys))
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):  # and not the end of this process
        os.write(writing, b"x")
    os.close(writing)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, heeded)


def test_both_sides_from_their_folders(world: World) -> None:
    bundles = world.folder / "bundles"
    client = FheClient.load(bundles / "client", trusted=world.trusted)
    with pytest.raises(ProtocolError, match="no keys yet"):
        _ = client.evaluation_keys
    client.load_keys(world.folder / "ring")
    images = list(world.images)
    with FheServer.load(bundles / "server", trusted=world.trusted) as server:
        answers = [server.run(q, client.evaluation_keys) for q in client.encrypt(images)]
    assert (client.decrypt(answers).integers == world.images).all()
    assert client.program == world.manifest.id


def test_keys_of_another_program_are_refused(world: World, tmp_path: Path) -> None:
    build(vector_graph(2, 2), tmp_path / "b", identity=world.operator, p_error=RARE)
    other = FheClient.load(tmp_path / "b" / "client", trusted=world.trusted)
    with pytest.raises(UntrustedArtifact, match="belong to program"):
        other.load_keys(world.folder / "ring")


def test_a_build_states_what_was_planned_and_compiled(world: World, tmp_path: Path) -> None:
    (layer,) = world.manifest.layers
    assert (layer.tables, layer.bootstraps, layer.table_bits) == (3, 3, 2)
    assert world.manifest.contract == "exact"
    assert world.manifest.p_error <= RARE
    assert world.manifest.graph == GRAPH.digest()
    assert world.server.client.spec.info.compressed
    with pytest.raises(ClaimTooWeak, match="measured disagreement"):
        build(GRAPH, tmp_path / "b", identity=world.operator, p_error=0.01)
    with pytest.raises(StorageError, match="exists already"):
        build(GRAPH, world.folder / "bundles", identity=world.operator, p_error=RARE)
    assert not (tmp_path / "b").exists()


def test_equal_graphs_make_equal_programs(world: World, tmp_path: Path) -> None:
    again, _ = build(GRAPH, tmp_path / "b", identity=world.operator, p_error=RARE)
    assert again.parameters == world.manifest.parameters
    assert again.graph == world.manifest.graph


def privml(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "privml.cli", "fhe", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT, **more,
    )  # type: ignore[call-overload,no-any-return]  # fmt: skip


class Serving:
    """``privml fhe serve`` in a process of its own."""

    def __init__(self, world: World, state: Path, *options: object, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "privml.cli", "fhe", "serve", "--bundle",
             str(world.folder / "bundles" / "server"), "--identity",
             str(world.folder / "certs" / "operator"), "--pin", str(world.ann.fingerprint),
             "--state", str(state), "--port", str(port), "--accept-licence", "--json",
             *map(str, options)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        for line in self.process.stderr or ():
            if "listening" in line:
                self.port = int(line.split(" port ")[1].split()[0])
                return
        raise AssertionError("the server ended")

    def stop(self, sign: int = signal.SIGTERM) -> str:
        self.process.send_signal(sign)
        out, _ = self.process.communicate(timeout=30)
        return out


def test_two_processes_and_a_batch_that_goes_on_after_both_ended(
    world: World, tmp_path: Path
) -> None:
    images = np.arange(36).reshape(12, 3) % 4
    for i, image in enumerate(images):
        np.save(tmp_path / f"{i:02d}.npy", image)
    files = sorted(tmp_path.glob("*.npy"))
    server = Serving(world, tmp_path / "state")
    words = [
        "query", *files, "--peer", f"127.0.0.1:{server.port}", "--pin",
        world.operator.fingerprint, "--identity", world.folder / "certs" / "ann", "--keys",
        world.folder / "ring", "--program", world.manifest.id, "--job", tmp_path / "job.json",
    ]  # fmt: skip
    first = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "privml.cli", "fhe", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    for line in first.stderr or ():
        if line.startswith("image 2 of 12"):
            break
    first.kill()
    first.communicate()
    done = privml(*words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    scores = np.array([entry["scores"] for entry in result["results"]])
    assert (scores == images).all()
    assert result["resumed"] >= 2
    assert result["keys_sent"] == 0
    assert result["share_results"] == "forbidden"
    assert not (tmp_path / "job.json").exists()
    report = json.loads(server.stop())
    assert report["images"] == 12  # none was computed twice
    assert report["ended"] == "stopped by a signal"


def test_a_server_killed_in_the_middle_of_a_batch_costs_no_image(
    world: World, tmp_path: Path
) -> None:
    images = np.arange(24).reshape(8, 3) % 4
    for i, image in enumerate(images):
        np.save(tmp_path / f"{i}.npy", image)
    server = Serving(world, tmp_path / "state")
    words = [
        "query", *sorted(tmp_path.glob("*.npy")), "--peer", f"127.0.0.1:{server.port}", "--pin",
        world.operator.fingerprint, "--identity", world.folder / "certs" / "ann", "--keys",
        world.folder / "ring", "--program", world.manifest.id, "--json",
    ]  # fmt: skip
    client = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "privml.cli", "fhe", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    for line in client.stderr or ():
        if "image 2 of 8" in line:
            break
    server.stop(signal.SIGKILL)
    server = Serving(world, tmp_path / "state", port=server.port)
    out, _ = client.communicate(timeout=120)
    assert client.returncode == 0
    result = json.loads(out)
    assert (np.array([entry["scores"] for entry in result["results"]]) == images).all()
    assert result["connections"] >= 2
    assert result["keys_sent"] == 1  # they were on disk when the server was killed
    report = json.loads(server.stop())
    assert report["images"] <= 6


def test_the_clients_verbs_and_one_query_on_stdin(world: World, tmp_path: Path) -> None:
    image = tmp_path / "x.npy"
    np.save(image, world.images[0])
    bundles = world.folder / "bundles"
    common = ["--bundle", bundles / "client", "--signer", world.operator.fingerprint]
    refused = privml("keygen", *common, "--out", tmp_path / "ring")
    assert refused.returncode == 2
    assert "--save-secret-key" in refused.stderr
    keys = ["--keys", world.folder / "ring"]
    made = privml("encrypt", image, *common, *keys, "--out", tmp_path / "q", "--json")
    assert made.returncode == 0, made.stderr
    (query,) = json.loads(made.stdout)["queries"]
    serve = [
        sys.executable, "-W", "ignore", "-m", "privml.cli", "fhe", "serve", "--stdin", "--bundle",
        bundles / "server", "--signer", world.operator.fingerprint, "--accept-licence", "--keys",
        world.folder / "ring" / "evaluation.keys",
    ]  # fmt: skip
    answer = subprocess.run(
        list(map(str, serve)), input=Path(query).read_bytes(), capture_output=True, check=True,
        env=ENVIRONMENT,
    ).stdout  # fmt: skip
    (tmp_path / "x.answer").write_bytes(answer)
    read = privml("decrypt", tmp_path / "x.answer", *common, *keys, "--json")
    assert json.loads(read.stdout)["results"][0]["scores"] == world.images[0].tolist()
    shown = privml("show", bundles / "client", "--signer", "0" * 64)
    assert shown.returncode == 3
    assert "does not trust" in shown.stderr
