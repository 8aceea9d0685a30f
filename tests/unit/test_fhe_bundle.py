"""Manifests and bundles: what is pinned, what is refused before anything is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from privml.backbones.digests import canonical_json
from privml.errors import (
    MalformedMessage,
    ParameterError,
    PrivmlError,
    SecurityError,
    StorageError,
    UntrustedArtifact,
)
from privml.protocols.fhe import bundle, inputs, signature
from privml.protocols.fhe.bundle import ClientPart, ServerPart, read_client, read_server
from privml.protocols.fhe.key_ring import KeyRing
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.manifest import Manifest, Toolkit
from privml.protocols.fhe.parties import LIBRARY_FILE, PROGRAM_FILE, Artefact
from privml.protocols.fhe.secrets_scan import refuse_secrets
from privml.testing.crashfs import CrashFs, Fault
from privml.testing.fhe_parts import fake_part
from privml.transport.identity import Identity


@pytest.fixture(scope="module")
def part() -> ServerPart:
    return fake_part()


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("identities")
    made = {"ed25519": "ed25519", "p256": "p256", "other": "ed25519"}
    return {name: Identity.generate(folder, name, curve=curve) for name, curve in made.items()}


@pytest.fixture
def written(tmp_path: Path, part: ServerPart, operators: dict[str, Identity]) -> Path:
    bundle.write_bundles(tmp_path / "out", part, identity=operators["ed25519"])
    return tmp_path / "out"


@pytest.fixture
def trusted(operators: dict[str, Identity]) -> set[str]:
    return {str(operators["ed25519"].fingerprint)}


def tree_of(part: ServerPart) -> dict[str, Any]:
    tree = json.loads(part.manifest.to_json())
    assert isinstance(tree, dict)
    return tree


def test_a_manifest_says_all_that_is_asked_of_it(part: ServerPart) -> None:
    tree = tree_of(part)
    assert tree["share_results"] == "forbidden"
    assert tree["licence"] == NOTICE
    assert tree["function_privacy"] == "heuristic"
    assert {"program", "parameters", "graph", "p_error", "toolkit", "contract"} <= tree.keys()
    assert not {"date", "time", "path"} & tree.keys()


def test_the_id_is_the_digest_of_canonical_json(part: ServerPart) -> None:
    again = Manifest.from_json(part.manifest.to_json())
    assert again == part.manifest
    assert again.id == part.manifest.id
    changed = msgspec.structs.replace(part.manifest, p_error=0.25)
    assert changed.id != part.manifest.id


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def apply(tree: dict[str, Any]) -> None:
        *above, last = path.split("/")
        for name in above:
            tree = tree[name]
        tree[last] = value

    return apply


@pytest.mark.parametrize(
    "edit",
    [
        change("format", "privml.fhe.manifest.2"),
        change("share_results", "allowed"),
        change("head", "client"),
        change("program", "0" * 63),
        change("extra", 1),
        change("p_error", 2),
        change("p_error", "0.1"),
        change("input/low", 9),
        change("input/scale", 0.5),
        change("input/front", "0" * 64),
        change("input/shape", [1 << 20, 1 << 20]),
        change("input/shape", []),
        change("output/scale", [1.0]),
        change("output/scale", [1e999, 1.0, 1.0]),
        change("output/labels", ["a"]),
        change("sizes/keys", -1),
        change("toolkit/machine", ""),
        lambda tree: tree.pop("licence"),
        lambda tree: tree.pop("sizes"),
    ],
)
def test_other_manifests_are_refused(
    part: ServerPart, edit: Callable[[dict[str, Any]], object]
) -> None:
    tree = tree_of(part)
    edit(tree)
    with pytest.raises(MalformedMessage, match="manifest"):
        Manifest.from_json(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode())


def test_only_the_canonical_form_is_read(part: ServerPart) -> None:
    data = part.manifest.to_json()
    for other in (
        data + b" ",
        b" " + data,
        json.dumps(tree_of(part)).encode(),
        b"",
        b"[]",
        b"\xff",
    ):
        with pytest.raises(MalformedMessage, match="manifest"):
            Manifest.from_json(other)
    with pytest.raises(MalformedMessage, match="longer"):
        Manifest.from_json(b" " * (bundle.MAX_MANIFEST_BYTES + 1))
    with pytest.raises(MalformedMessage, match="manifest"):
        Manifest.from_json(b"[" * 100_000)


def test_bundles_come_back(written: Path, part: ServerPart, trusted: set[str]) -> None:
    server = read_server(written / "server", trusted=trusted)
    client = read_client(written / "client", trusted=trusted)
    assert server.manifest == client.manifest == part.manifest
    assert server.artefact.files == part.artefact.files
    assert server.graph == part.graph
    assert client.parameters == part.client.parameters
    assert sorted(p.name for p in written.iterdir()) == ["client", "server"]
    assert sorted(p.name for p in (written / "client").iterdir()) == [
        "index.json", "manifest.json", "parameters.json", "signature.json"
    ]  # fmt: skip


def test_the_clients_bundle_holds_no_weights_and_no_code(written: Path, part: ServerPart) -> None:
    held = b"".join(path.read_bytes() for path in (written / "client").iterdir())
    assert part.graph not in held
    assert part.artefact.files[LIBRARY_FILE] not in held


def test_an_existing_folder_is_not_touched(
    tmp_path: Path, part: ServerPart, operators: dict[str, Identity]
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(StorageError, match="exists already"):
        bundle.write_bundles(tmp_path / "out", part, identity=operators["p256"])
    assert not list((tmp_path / "out").iterdir())


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, part: ServerPart, operators: dict[str, Identity]
) -> None:
    (tmp_path / "scratch").mkdir()
    counter = CrashFs(tmp_path / "scratch")
    with counter.running():
        bundle.write_bundles(tmp_path / "whole", part, identity=operators["p256"])
    for at in range(1, len(counter.ops), 5):  # every kind of step is met
        scratch, out = tmp_path / f"scratch-{at}", tmp_path / f"disk-{at}"
        scratch.mkdir()
        out.mkdir()
        with CrashFs(scratch, at=at, fault=Fault.ENOSPC).running(), suppress(StorageError):
            bundle.write_bundles(out / "b", part, identity=operators["p256"])
        left = sorted(path.name for path in out.iterdir())
        assert left in ([], ["b"]), at
        if left:
            bundle.read_client(out / "b" / "client", trusted=[operators["p256"].fingerprint])


@pytest.mark.parametrize("kind", ["server", "client"])
def test_every_changed_or_missing_file_is_refused(
    kind: str, written: Path, trusted: set[str]
) -> None:
    read: Callable[..., object] = read_server if kind == "server" else read_client
    for path in sorted((written / kind).iterdir()):
        data = path.read_bytes()
        for bad in (data[:-1], data + b"\0", bytes([data[0] ^ 1]) + data[1:]):
            path.write_bytes(bad)
            with pytest.raises((UntrustedArtifact, MalformedMessage)):
                read(written / kind, trusted=trusted)
        path.unlink()
        with pytest.raises(PrivmlError):
            read(written / kind, trusted=trusted)
        path.write_bytes(data)
    read(written / kind, trusted=trusted)


def test_unknown_files_links_and_folders_are_refused(written: Path, trusted: set[str]) -> None:
    folder = written / "server"
    for make in (
        lambda path: path.write_bytes(b"x"),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("manifest.json"),
    ):
        make(folder / "more")
        with pytest.raises(UntrustedArtifact, match="does not belong"):
            read_server(folder, trusted=trusted)
        shutil.rmtree(folder / "more") if (folder / "more").is_dir() else (folder / "more").unlink()
    library = folder / LIBRARY_FILE
    moved = folder.parent / "library"
    library.rename(moved)
    library.symlink_to(moved)
    with pytest.raises(StorageError, match="symbolic link"):
        read_server(folder, trusted=trusted)


def test_an_index_cannot_name_paths(
    tmp_path: Path, written: Path, operators: dict[str, Identity], trusted: set[str]
) -> None:
    folder = written / "server"
    index = json.loads((folder / "index.json").read_bytes())
    for name in ("../front.json", "/tmp/x", "front.json\0", "a/b"):
        changed = {**index, "files": {**index["files"], name: index["files"]["manifest.json"]}}
        data = canonical_json(changed)
        (folder / "index.json").write_bytes(data)
        signed = signature.sign(data, identity=operators["ed25519"])
        (folder / "signature.json").write_bytes(signed)
        with pytest.raises(MalformedMessage, match="other files"):
            read_server(folder, trusted=trusted)


def test_a_secret_key_in_the_servers_folder_is_refused(written: Path, trusted: set[str]) -> None:
    bits = np.random.default_rng(1).integers(0, 2, 600).astype("<u8").tobytes()
    ring = KeyRing("0" * 64, b"x" * 100, b"y" * 100)
    ring.save(written.parent / "ring")
    secrets = {
        "words": b"abc" + bits,
        "ring": (written.parent / "ring" / "secret.keys").read_bytes(),
    }
    for name, data in secrets.items():
        path = written / "server" / name
        path.write_bytes(data)
        with pytest.raises(SecurityError, match="secret key"):
            read_server(written / "server", trusted=trusted)
        with pytest.raises(SecurityError, match="secret key"):
            refuse_secrets(written / "server")
        path.unlink()
    refuse_secrets(written / "server")


def test_only_trusted_signers_count(
    written: Path, part: ServerPart, operators: dict[str, Identity], trusted: set[str]
) -> None:
    with pytest.raises(UntrustedArtifact, match="does not trust"):
        read_server(written / "server", trusted={str(operators["other"].fingerprint)})
    with pytest.raises(UntrustedArtifact, match="does not trust"):
        read_server(written / "server", trusted=set())
    raw = (written / "server" / "index.json").read_bytes()
    forged = json.loads(signature.sign(raw, identity=operators["other"]))
    forged["certificate"] = operators["ed25519"].certificate.hex()
    (written / "server" / "signature.json").write_bytes(canonical_json(forged))
    with pytest.raises(UntrustedArtifact, match="changed after it was signed"):
        read_server(written / "server", trusted=trusted)


@pytest.mark.parametrize("name", ["ed25519", "p256"])
def test_signatures(name: str, operators: dict[str, Identity]) -> None:
    identity = operators[name]
    document = signature.sign(b"index", identity=identity)
    pins = {str(identity.fingerprint)}
    assert signature.verify(document, b"index", trusted=pins) == identity.fingerprint
    with pytest.raises(UntrustedArtifact, match="changed"):
        signature.verify(document, b"other", trusted=pins)
    for bad in (b"", b"{}", document[:-1], b"x" * (signature.MAX_SIGNATURE_BYTES + 1)):
        with pytest.raises(MalformedMessage):
            signature.verify(bad, b"index", trusted=pins)


def test_the_other_sides_bundle_is_not_taken(written: Path, trusted: set[str]) -> None:
    with pytest.raises(UntrustedArtifact, match="the client's bundle; this side takes"):
        read_server(written / "client", trusted=trusted)
    with pytest.raises(StorageError, match=r"did you mean .*server"):
        read_server(written, trusted=trusted)
    with pytest.raises(StorageError, match="no such folder"):
        read_server(written / "nothing", trusted=trusted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"concrete_python": "2.10.0"}, r"concrete-python 2\.10\.0 there, 2\.11\.0 here"),
        ({"python": "3.99"}, r"Python 3\.99 there"),
        ({"machine": "riscv"}, "processor riscv there"),
        ({"features": ("vector9000",)}, "lacks vector9000"),
    ],
)
def test_programs_of_other_versions_are_refused(
    change: dict[str, Any], words: str, tmp_path: Path, part: ServerPart,
    operators: dict[str, Identity], trusted: set[str],
) -> None:  # fmt: skip
    kit = msgspec.structs.replace(Toolkit.here(), **change)
    manifest = msgspec.structs.replace(part.manifest, toolkit=kit)
    other = ServerPart(manifest, part.artefact, part.graph, None)
    bundle.write_bundles(tmp_path / "b", other, identity=operators["ed25519"])
    with pytest.raises(UntrustedArtifact, match=words):
        read_server(tmp_path / "b" / "server", trusted=trusted)
    read_client(tmp_path / "b" / "client", trusted=trusted)  # clients load no native program


def test_parts_must_belong_together(part: ServerPart) -> None:
    parameters = part.artefact.files[PROGRAM_FILE]
    with pytest.raises(UntrustedArtifact, match="compiled program"):
        ServerPart(
            part.manifest, Artefact({PROGRAM_FILE: parameters, LIBRARY_FILE: b"?"}), b"", None
        )
    with pytest.raises(MalformedMessage, match="parameters or front end"):
        ClientPart(part.manifest, parameters + b" ", None)
    with pytest.raises(MalformedMessage, match="parameters or front end"):
        ClientPart(part.manifest, parameters, b"{}")
    sizes = msgspec.structs.replace(part.manifest.sizes, keys=1)
    with pytest.raises(MalformedMessage, match="other sizes"):
        ClientPart(msgspec.structs.replace(part.manifest, sizes=sizes), parameters, None)


def test_the_clients_part_crosses_the_wire(part: ServerPart) -> None:
    data = part.client.to_bytes()
    assert ClientPart.from_bytes(data).manifest == part.manifest
    for bad in (b"", data[:11], data[:-1], data + b"x", bytes(len(data)), b"\xff" * len(data)):
        with pytest.raises(MalformedMessage):
            ClientPart.from_bytes(bad)


def test_quantising_follows_the_networks_rule() -> None:
    values = np.array([-9.0, -0.75, -0.25, 0.25, 0.75, 9.0], np.float32)
    found = inputs.quantise(values, scale=0.5, low=-3, high=3)
    assert found.tolist() == [-3, -1, 0, 1, 2, 3]
    assert found.flags.c_contiguous
    assert found.dtype == np.int64


def test_images_without_a_front_end_are_integers(part: ServerPart) -> None:
    image = np.array([0, 1, 3])
    assert inputs.prepare(part.client, [image, image]).shape == (2, 3)
    with pytest.raises(ParameterError, match="at least one"):
        inputs.prepare(part.client, [])
    with pytest.raises(ParameterError, match="no front end"):
        inputs.prepare(part.client, [b"jpeg"])
    with pytest.raises(ParameterError, match=r"\[0, 3\]"):
        inputs.prepare(part.client, [image + 1])


def test_the_format_does_not_drift(part: ServerPart) -> None:
    kit = Toolkit("2.11.0", "3.11", "x86_64", ("avx2", "fma"))
    fixed = msgspec.structs.replace(part.manifest, toolkit=kit)
    assert fixed.id == "8633150c6d585f7a556e167a0583c0e4271e6eec3c1cf14cf033630a6f0a4da1"
