"""CKKS programs between client and server over mutual TLS, by the service that serves TFHE ones."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from privml._cli import output
from privml._cli.fhe import fhe
from privml.errors import (
    MalformedMessage,
    ParameterError,
    ProtocolError,
    SecurityError,
    StorageError,
    UntrustedArtifact,
)
from privml.protocols.fhe import client as remote
from privml.protocols.fhe.client import Address
from privml.protocols.fhe.messages import Refused
from privml.protocols.fhe.service import Service, ServiceEvent
from privml.protocols.fhe.sides import FheServer
from privml.protocols.he import Layer, PolynomialClassifier, PolynomialNetwork, tenseal_backend
from privml.protocols.he.bundle import build, read_client, read_server
from privml.protocols.he.program import CkksPart, CkksServer, is_ckks
from privml.protocols.he.sides import CkksClient
from privml.testing.fhe_parts import fake_part
from privml.testing.jpegs import encode
from privml.transport.identity import Identity

pytestmark = pytest.mark.skipif(
    tenseal_backend.missing() is not None, reason=str(tenseal_backend.missing())
)
NAMES = tuple("abcd")


@pytest.fixture(autouse=True)
def _pipes_break_softly() -> None:
    """Undo what tests of the bare library leave in this process: a handler that ends it."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def network(seed: int = 1, sizes: tuple[int, ...] = (12, 16, 4)) -> PolynomialNetwork:
    rng = np.random.default_rng(seed)
    layers = tuple(
        Layer(f"m{k}", rng.normal(size=(b, a)) / np.sqrt(a), rng.normal(size=b))
        for k, (a, b) in enumerate(pairwise(sizes))
    )
    return PolynomialNetwork(layers, 3.0, (sizes[0],))


def photos(count: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-3, 3, (count, 12))


@dataclass
class World:
    """An operator with one program, and two clients with certificates."""

    folder: Path
    operator: Identity
    clients: dict[str, Identity]
    server: CkksServer
    part: CkksPart
    clear: PolynomialClassifier
    events: list[ServiceEvent] = field(default_factory=list)

    @property
    def trusted(self) -> set[str]:
        return {str(self.operator.fingerprint)}

    @contextmanager
    def serving(self, state: Path, port: int = 0) -> Iterator[Service]:
        with Service(
            [self.server], identity=self.operator, state=state, port=port,
            pins=[one.fingerprint for one in self.clients.values()], on_event=self.events.append,
        ) as running:  # fmt: skip
            running.start()
            yield running

    def address(self, service: Service, name: str = "ann") -> Address:
        pin = str(self.operator.fingerprint)
        return Address("127.0.0.1", service.port, self.clients[name], pin, patience_s=20.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("ckks")
    operator = Identity.generate(folder / "certs", "operator")
    clients = {name: Identity.generate(folder / "certs", name) for name in ("ann", "bob")}
    clear = PolynomialClassifier(network(), names=NAMES)
    clear.save(folder / "model")
    build(clear, folder / "bundles", identity=operator)
    trusted = {str(operator.fingerprint)}
    server = read_server(folder / "bundles" / "server", trusted=trusted)
    part = read_client(folder / "bundles" / "client", trusted=trusted)
    return World(folder, operator, clients, server, part, clear)


def close_to(world: World, found: np.ndarray, images: np.ndarray) -> bool:
    want = world.clear.run(images, mode="clear").scores
    bound = world.part.manifest.error_bound
    return bool(found.shape == want.shape and np.abs(found - want).max() <= bound)


def test_many_images_in_few_queries_from_two_clients(world: World, tmp_path: Path) -> None:
    count, before = world.part.manifest.images + 3, len(world.events)
    with world.serving(tmp_path / "state") as service:
        ann = CkksClient.ask_for(world.address(service), world.part.id)
        ann.keygen()
        images = photos(count)
        work = ann.work(world.address(service), ann.prepare(images))
        assert close_to(world, work.run().scores, images)
        assert (len(work.images), work.uploads) == (2, 1)
        bob = CkksClient(world.part)
        bob.keygen()
        others = photos(2, seed=9)
        assert close_to(world, bob.classify(world.address(service, "bob"), others).scores, others)
        again = ann.work(world.address(service), ann.prepare(images[:1]))
        assert close_to(world, again.run().scores, images[:1])
        assert again.uploads == 0
    kinds = [event.kind for event in world.events[before:]]
    assert kinds.count("keys") == 2
    assert kinds.count("image") == 4
    assert "failed" not in kinds


def test_a_job_goes_on_after_the_server_was_ended(world: World, tmp_path: Path) -> None:
    images = photos(2 * world.part.manifest.images)
    client = CkksClient(world.part)
    client.keygen()
    with world.serving(tmp_path / "state") as service:
        port = service.port
        work = client.work(world.address(service), client.prepare(images))

        def leave(done: int, total: int) -> None:
            if done == 1:
                service.stop()

        work.progress = leave
        restarted: list[object] = []

        def note(text: str) -> None:
            if not restarted:
                service.close()
                second = world.serving(tmp_path / "state", port)
                restarted.extend((second, second.__enter__()))

        work.note = note
        try:
            assert close_to(world, work.run().scores, images)
        finally:
            if restarted:
                restarted[0].__exit__(None, None, None)  # type: ignore[attr-defined]


def test_bytes_of_others_cost_a_refusal_and_not_the_server(world: World, tmp_path: Path) -> None:
    mine, other = CkksClient(world.part), CkksClient(world.part)
    keys, wrong = mine.keygen(), other.keygen()
    (query,) = mine.encrypt(photos(1))
    with FheServer(world.server) as server:
        good = server.run(query, keys)
        assert close_to(world, mine.decrypt([good]).scores, photos(1))
        for data in (b"x", query[:-1], query + b"x", keys[:500], good, bytes(len(query))):
            with pytest.raises(MalformedMessage):
                server.run(data, keys)
        for data in (b"", keys[:4], keys[:-9], bytes(8), keys + b"x", query):
            with pytest.raises(MalformedMessage):
                server.run(query, data)
        foreign = server.run(query, wrong)  # decrypts to noise, and nobody can tell from outside
        assert not close_to(world, mine.decrypt([foreign]).scores, photos(1))
        assert not close_to(world, other.decrypt([good]).scores, photos(1))
        assert server.run(query, keys)[:16] == good[:16]
    with pytest.raises(MalformedMessage):
        mine.decrypt([good[:-1]])


def test_a_failed_query_is_named_to_the_client(world: World, tmp_path: Path) -> None:
    client = CkksClient(world.part)
    client.keygen()
    with world.serving(tmp_path / "state") as service:
        work = client.work(world.address(service), client.prepare(photos(1)))
        work._queries[0] = b"\x5e\xa1\x10" + bytes(500)
        with pytest.raises(Refused, match="malformed"):
            work.run()
        large = client.work(world.address(service), client.prepare(photos(1)))
        large._queries[0] = bytes(world.part.traffic.query.most + 1)
        with pytest.raises(Refused, match="at most"):
            large.run()
        assert close_to(world, client.classify(world.address(service), photos(2)).scores, photos(2))


def test_keys_on_disk_are_the_same_keys(world: World, tmp_path: Path) -> None:
    client = CkksClient(world.part)
    keys = client.keygen()
    (query,) = client.encrypt(photos(1))
    client.save_keys(tmp_path / "ring")
    assert (tmp_path / "ring" / "secret.keys").stat().st_mode & 0o777 == 0o600
    later = CkksClient(world.part)
    with pytest.raises(ProtocolError, match="no keys"):
        later.encrypt(photos(1))
    later.load_keys(tmp_path / "ring")
    assert later.evaluation_keys == keys
    with FheServer(world.server) as server:
        assert close_to(world, later.decrypt([server.run(query, keys)]).scores, photos(1))
    build(PolynomialClassifier(network(seed=5)), tmp_path / "b", identity=world.operator)
    foreign = CkksClient(read_client(tmp_path / "b" / "client", trusted=world.trusted))
    with pytest.raises(UntrustedArtifact, match="belong to program"):
        foreign.load_keys(tmp_path / "ring")
    with pytest.raises(SecurityError, match="secret key"):
        Service([world.server], identity=world.operator, pins=["0" * 64], state=tmp_path / "ring")


@pytest.mark.parametrize("name", ["ckks.json", "spec.json", "network.json", "network.safetensors"])
def test_changed_bundles_are_refused(world: World, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    for path in (world.folder / "bundles" / "server").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(UntrustedArtifact, match="not the file that was signed"):
        read_server(folder, trusted=world.trusted)
    (folder / name).unlink()
    with pytest.raises((UntrustedArtifact, StorageError)):
        read_server(folder, trusted=world.trusted)


def test_bundles_of_strangers_and_of_the_other_side_are_refused(world: World) -> None:
    bundles = world.folder / "bundles"
    with pytest.raises(UntrustedArtifact, match="does not trust"):
        read_server(bundles / "server", trusted={"0" * 64})
    with pytest.raises(UntrustedArtifact, match="client's bundle"):
        read_server(bundles / "client", trusted=world.trusted)
    with pytest.raises(StorageError, match="did you mean"):
        read_client(bundles, trusted=world.trusted)


def test_parts_that_contradict_each_other_are_refused(world: World) -> None:
    part = world.part
    other = ClientOther.specification(part)
    with pytest.raises(MalformedMessage):
        CkksPart(part.manifest, other, None)
    with pytest.raises(MalformedMessage):
        CkksPart(part.manifest, part.specification, b"{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privml.protocols.he.program._MAX_KEYS", 1000)
        with pytest.raises(MalformedMessage, match="fewer features"):
            CkksPart(part.manifest, part.specification, None)
    raw = part.to_bytes()
    assert is_ckks(raw)
    assert not is_ckks(fake_part().public())
    assert not is_ckks(b"junk")
    for bad in (raw[:-1], raw + b"x", raw[:5], b"", fake_part().public()):
        with pytest.raises(MalformedMessage):
            CkksPart.from_bytes(bad)
    wrong = network(seed=8)
    from privml.protocols.he.network_file import DESCRIPTION, WEIGHTS, network_files

    files = network_files(wrong)
    with pytest.raises(MalformedMessage, match="not the one"):
        CkksServer(part, files[DESCRIPTION], files[WEIGHTS])


class ClientOther:
    """Another program's specification."""

    @staticmethod
    def specification(part: CkksPart) -> bytes:
        """Return one with another limit."""
        return part.specification.replace(b'"limit":3', b'"limit":4')


def test_images_of_another_kind_are_refused_before_encryption(world: World) -> None:
    for bad in ([b"no image"], [np.zeros(11)], [np.zeros((12, 1))], [], [np.full(12, np.nan)],
                [np.array(["x"] * 12)]):  # fmt: skip
        with pytest.raises(ParameterError):
            world.part.prepare(bad)  # type: ignore[arg-type]
    assert world.part.prepare([np.full(12, 99)]).max() == 3.0
    with pytest.raises(ParameterError, match="batch"):
        world.part.check([np.zeros((world.part.manifest.images + 1, 12))])


# the command line


def run(*words: object) -> None:
    fhe([str(word) for word in words], prog_name="fhe", standalone_mode=False)


def test_the_verbs_of_the_command_line(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(output, "MODE", output.Mode(json=True))
    images = photos(3)
    for i, image in enumerate(images):
        np.save(tmp_path / f"{i}.npy", image)
    files = sorted(tmp_path.glob("*.npy"))
    model, me = world.folder / "model", world.folder / "certs" / "ann"
    want = world.clear.run(images, mode="clear").scores

    def told(*words: object) -> dict[str, object]:
        run(*words)
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    def same(found: dict[str, object], error: float = 1e-2) -> bool:
        scores = np.array([entry["scores"] for entry in found["results"]])  # type: ignore[attr-defined]
        return bool(np.abs(scores - want).max() < error)

    assert told("plan", model)["plan"]["scheme"] == "ckks"  # type: ignore[index]
    for mode in ("clear", "simulate", "execute"):
        assert same(told("predict", model, *files, "--mode", mode))
    assert told("bench", model, *files)["executed_agree"] == 3
    operator = world.folder / "certs" / "operator"
    made = told("compile", model, "--out", tmp_path / "b", "--identity", operator)
    assert made["program"] == world.part.id  # equal networks are equal programs
    client, signer = tmp_path / "b" / "client", ("--signer", world.operator.fingerprint)
    assert told("show", client, *signer)["program"] == world.part.id
    assert told("show", tmp_path / "b" / "server", *signer)["kind"] == "server"
    told("keygen", "--bundle", client, "--out", tmp_path / "ring", "--save-secret-key", *signer)
    sides = ("--bundle", client, "--keys", tmp_path / "ring", *signer)
    queries = told("encrypt", *files, *sides, "--out", tmp_path / "q")["queries"]
    (tmp_path / "a").mkdir()
    with FheServer(world.server) as server:
        keys = CkksClient(world.part)
        keys.load_keys(tmp_path / "ring")
        for i, query in enumerate(queries):  # type: ignore[arg-type]
            answer = server.run(Path(query).read_bytes(), keys.evaluation_keys)
            (tmp_path / "a" / f"{i}.answer").write_bytes(answer)
    assert same(told("decrypt", tmp_path / "a", *sides))
    with world.serving(tmp_path / "state") as service:
        words = ("query", *files, "--peer", f"127.0.0.1:{service.port}", "--pin",
                 world.operator.fingerprint, "--identity", me)  # fmt: skip
        found = told(*words, "--program", world.part.id)
        assert same(found)
        assert (found["scheme"], found["queries"]) == ("ckks", 1)
        kept = told(*words, "--keys", tmp_path / "ring", "--job", tmp_path / "job")
        assert same(kept)
        with pytest.raises(Refused):
            run(*words, "--program", "0" * 64)
    with pytest.raises(output.UsageError, match="only for TFHE"):
        run("plan", model, "--exact")


def test_the_server_is_asked_for_its_part_only_by_pinned_clients(
    world: World, tmp_path: Path
) -> None:
    with world.serving(tmp_path / "state") as service:
        data = remote.ask_part(world.address(service))
        assert CkksPart.from_bytes(data).id == world.part.id
        with pytest.raises(MalformedMessage):
            remote.describe(world.address(service))  # it is no TFHE program


def test_a_network_of_squares_is_trained_and_an_unreadable_image_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "MODE", output.Mode(json=True))
    rng = np.random.default_rng(4)
    for k, name in enumerate(("dark", "bright")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 90, (8, 8, 3)) + 160 * k
            file = tmp_path / "data" / name / f"{i}.jpg"
            file.write_bytes(encode(pixels.astype(np.uint8), sampling="4:4:4"))
    words = ("train", "--data", tmp_path / "data", "--out", tmp_path / "run", "--net", "square",
             "--block", 8, "--channels", "y6", "--widths", 4, "--epochs", 6,
             "--batch", 8)  # fmt: skip
    with pytest.raises(output.UsageError, match="keep no checkpoint"):
        run(*words, "--resume")
    run(*words)
    assert json.loads(capsys.readouterr().out)["report"]["scheme"] == "ckks"
    photo = tmp_path / "data" / "bright" / "0.jpg"
    run("predict", tmp_path / "run" / "model", photo, "--mode", "execute")
    assert json.loads(capsys.readouterr().out)["results"][0]["label"] in ("bright", "dark")
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(photo.read_bytes()[:-40])
    with pytest.raises(MalformedMessage, match=r"broken\.jpg: "):
        run("predict", tmp_path / "run" / "model", photo, broken)
    (tmp_path / "data" / "dark" / "0.jpg").write_bytes(b"no image")
    with pytest.raises(MalformedMessage, match=r"0\.jpg: this is not a JPEG"):
        run(*words[:3], "--out", tmp_path / "other", *words[5:])
