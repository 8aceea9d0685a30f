"""Client and server apart: what goes between them, what the server can hold, hostile bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from privml.errors import (
    InsecureParameters,
    MalformedMessage,
    ParameterError,
    ProtocolError,
    UntrustedArtifact,
)
from privml.protocols.fhe import parties, reference, toolkit
from privml.protocols.fhe.circuits import Circuit
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.parties import Artefact, Client, EvaluationKeys, Server
from privml.protocols.fhe.program_info import ENVELOPE_BYTES, ProgramInfo
from privml.testing.integer_graphs import random_images
from privml.testing.tiny_graphs import residual_graph

pytestmark = [
    pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing())),
    pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice"),
]
WINDOW = 32  # consecutive bits of a secret key, one word each; chance finds 2^-2000


@dataclass(frozen=True)
class Setting:
    circuit: Circuit
    client: Client
    server: Server
    sent: bytes
    keys: EvaluationKeys
    images: Ints
    query: bytes
    answer: bytes

    @property
    def right(self) -> Ints:
        return reference.run(self.circuit.graph, self.images)


@pytest.fixture(scope="module")
def setting() -> Iterator[Setting]:
    with Circuit(residual_graph(exact=True), global_p_error=2.0**-20) as circuit:
        client = circuit.client()
        sent = client.keygen()
        with circuit.server() as server:
            keys = server.load_keys(sent)
            images = random_images(circuit.graph, 2, seed=1)[1:]
            (query,) = client.encrypt(images)
            answer = server.run(query, keys)
            yield Setting(circuit, client, server, sent, keys, images, query, answer)


def secret_windows(data: bytes) -> list[bytes]:
    """Return bytes from where very many words in a row are 0 or 1, and both occur: keys."""
    words = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
    small = np.concatenate([[0], (words <= 1).astype(int), [0]])
    edges = np.flatnonzero(np.diff(small))
    runs = zip(edges[::2], edges[1::2], strict=True)
    long = [(a, b) for a, b in runs if b - a >= 4 * WINDOW]
    return [data[8 * a : 8 * (a + WINDOW)] for a, b in long if 0 < words[a:b].mean() < 1]


def test_bytes_go_both_ways_and_the_scores_are_right(setting: Setting) -> None:
    decrypted = setting.client.decrypt([setting.answer])
    assert (decrypted.integers == setting.right).all()
    assert {type(b) for b in (setting.sent, setting.query, setting.answer)} == {bytes}


def test_sizes_are_those_of_the_manifest_and_compressed(setting: Setting) -> None:
    info = setting.client.spec.info
    for data, words in (
        (setting.sent, info.key_bytes),
        (setting.query, info.query_bytes),
        (setting.answer, info.answer_bytes),
    ):
        assert words < len(data) <= words + ENVELOPE_BYTES
    assert info.compressed
    assert info.query_bytes == 2 * 4 * 4 * 3 * 8  # a seed and one word each
    assert 2 * len(setting.sent) < setting.circuit.report.loaded_key_bytes


def test_no_frame_and_no_server_file_holds_a_secret_key(setting: Setting) -> None:
    secrets = setting.client.secret_keys()
    windows = secret_windows(secrets)
    assert len(windows) >= 2  # the scan finds keys where they are
    frames = [setting.sent, setting.query, setting.answer]
    for data in (*frames, *setting.circuit.artefact.files.values()):
        assert not any(window in data for window in windows)
    assert not any(map(secret_windows, frames))


def test_the_server_has_no_field_and_no_decoder_for_a_secret_key(setting: Setting) -> None:
    names = {*dir(Server), *vars(setting.server), *(f.name for f in fields(EvaluationKeys))}
    assert not [name for name in names if "secret" in name or "decrypt" in name]
    with pytest.raises(MalformedMessage, match="evaluation keys have"):
        setting.server.load_keys(setting.client.secret_keys())


def test_two_clients_differ_and_cannot_read_each_other(setting: Setting) -> None:
    other = setting.circuit.client()
    sent = other.keygen()
    assert not set(secret_windows(other.secret_keys())) & set(
        secret_windows(setting.client.secret_keys())
    )
    (query,) = other.encrypt(setting.images)
    answer = setting.server.run(query, setting.server.load_keys(sent))
    assert (other.decrypt([answer]).integers == setting.right).all()
    assert (setting.client.decrypt([answer]).integers != setting.right).any()


def test_encryption_is_randomised(setting: Setting) -> None:
    assert len({setting.client.encrypt(setting.images)[0] for _ in range(4)}) == 4


def test_keys_come_back_from_the_clients_disk(setting: Setting) -> None:
    again = setting.circuit.client()
    again.use_secret_keys(setting.client.secret_keys())
    assert (again.decrypt([setting.answer]).integers == setting.right).all()
    with pytest.raises(MalformedMessage, match="secret keys"):
        again.use_secret_keys(setting.sent)


def test_a_client_without_keys_says_so(setting: Setting) -> None:
    client = setting.circuit.client()
    for call in (lambda: client.decrypt([b""]), client.evaluation_keys, client.secret_keys):
        with pytest.raises(ProtocolError, match="keygen"):
            call()
    assert repr(client) == "Client(no keys yet)"
    assert repr(setting.client) == "Client(with keys)"


def test_messages_of_another_size_are_refused_before_they_are_parsed(setting: Setting) -> None:
    query, answer = setting.query, setting.answer
    padding = bytes(ENVELOPE_BYTES)
    for bad in (b"", query[: len(query) // 2], query + padding, answer):
        with pytest.raises(MalformedMessage):
            setting.server.run(bad, setting.keys)
    for bad in (b"", setting.sent[:-ENVELOPE_BYTES], setting.sent + padding, query):
        with pytest.raises(MalformedMessage):
            setting.server.load_keys(bad)
    for bad in (b"", answer[: len(answer) // 2], answer + padding, query):
        with pytest.raises(MalformedMessage):
            setting.client.decrypt([bad])


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x41])
def test_messages_of_the_right_size_and_no_sense_are_refused(setting: Setting, fill: int) -> None:
    info = setting.client.spec.info
    with pytest.raises(MalformedMessage):
        setting.server.run(bytes([fill]) * (info.query_bytes + 100), setting.keys)
    with pytest.raises(MalformedMessage):
        setting.client.decrypt([bytes([fill]) * (info.answer_bytes + 100)])


def test_only_the_recorded_program_is_loaded(setting: Setting) -> None:
    artefact = setting.circuit.artefact
    name = parties.LIBRARY_FILE
    changed = bytearray(artefact.files[name])
    changed[-1] ^= 1
    files = {**artefact.files, name: bytes(changed)}
    with pytest.raises(UntrustedArtifact, match="recorded"):
        Server(Artefact(files), digest=artefact.digest)
    renamed = Artefact({"../" + n: data for n, data in artefact.files.items()})
    with pytest.raises(MalformedMessage, match="compiled program"):
        Server(renamed, digest=renamed.digest)


def test_weak_programs_get_no_keys(setting: Setting) -> None:
    text = setting.client.spec.info.data
    start = text.index(b'"variance":') + len(b'"variance":')
    end = min(text.index(mark, start) for mark in (b",", b"}"))
    weak = ProgramInfo(text[:start] + b"1e-60" + text[end:])
    with pytest.raises(InsecureParameters):
        Client(replace(setting.client.spec, info=weak))


def test_the_specification_must_fit_the_program(setting: Setting) -> None:
    spec = setting.client.spec
    with pytest.raises(ParameterError, match="other shapes"):
        replace(spec, image=replace(spec.image, shape=(1, 4, 4)))
    with pytest.raises(ParameterError, match="other shapes"):
        replace(spec, scale=np.ones(2), offset=np.ones(2))
    with pytest.raises(ParameterError, match="same length"):
        replace(spec, offset=np.ones(2))


def test_the_parties_need_no_torch() -> None:
    code = (
        "import sys, warnings; warnings.simplefilter('ignore');"
        "from privml.protocols.fhe import parties, toolkit; toolkit.compiler();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
