"""Rules about the source text that ruff and the import contracts cannot express.

Every rule is a function from one file to its findings; each has bad samples that it must catch
and good samples that it must leave alone, and then runs over the whole repository.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pytest

LIBRARY = ("privml/", "protocols/", "unlearning/", "valuation/")
AREAS = frozenset({"protocols", "unlearning", "valuation"})

TORCH_FREE = frozenset(
    {
        "privml",
        "privml._native",
        "privml._typing",
        "privml.audit",
        "privml.errors",
        "privml.fixedpoint",
        "privml.handshake",
        "privml.meter",
        "privml.params",
        "privml.party",
        "privml.rings",
        "privml.rng",
        "privml.rounds",
        "privml.session",
        "privml.storage",
        "privml.transcript",
        "privml.transport",
        "privml.wire",
    }
)
OBJECT_FORMATS = frozenset(
    {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve"}
)
LOADERS = frozenset({("torch", "load"), ("torch", "save"), ("yaml", "load")})
FOREIGN_TOOLKITS = ("concrete.ml", "crypten")
DECODERS = (
    "privml.audit",
    "privml.handshake",
    "privml.party",
    "privml.session",
    "privml.transcript",
    "privml.transport",
    "privml.wire",
)
FILE_CHANGERS = frozenset(
    {
        "hardlink_to",
        "rename",
        "rmtree",
        "save_file",
        "savez",
        "savez_compressed",
        "symlink_to",
        "tofile",
        "touch",
        "unlink",
        "write_bytes",
        "write_text",
    }
)


@dataclass(frozen=True)
class Source:
    """One Python file of the repository: path with forward slashes, text, syntax tree."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def library(self) -> bool:
        return self.path.startswith(LIBRARY)

    @property
    def module(self) -> str:
        name = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return f"privml.{name}" if name.partition(".")[0] in AREAS else name


Findings = Iterator[tuple[int, str]]
Rule = Callable[[Source], Findings]


def calls(source: Source) -> Iterator[tuple[ast.Call, str, bool]]:
    """Yield every call with the last part of its name and whether it is a method call."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node, node.func.id, False
            elif isinstance(node.func, ast.Attribute):
                yield node, node.func.attr, True


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Yield every absolute import, at any depth, as dotted names including imported members."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def owner(call: ast.Call) -> str:
    """Return ``x`` of a call ``x.f()``, or an empty string."""
    before = call.func.value if isinstance(call.func, ast.Attribute) else None
    return before.id if isinstance(before, ast.Name) else ""


def may_write(call: ast.Call, *, method: bool) -> bool:
    """Return whether a call of something named ``open`` can open a file for writing."""
    module = owner(call)
    if module == "os":
        return True
    position = 0 if method and module != "io" else 1
    named = [k.value for k in call.keywords if k.arg == "mode"]
    mode = named[0] if named else call.args[position] if len(call.args) > position else None
    value = constant(mode)
    if isinstance(value, str):
        return re.fullmatch(r"[rwaxbt+U]*", value) is not None and bool(set(value) & set("wax+"))
    return mode is not None and (bool(named) or not method)


def writes_only_in_storage(source: Source) -> Findings:
    """Files are created, changed and removed by ``privml.storage.fs`` alone."""
    if not source.library or source.path.startswith(("privml/storage/fs.py", "privml/testing/")):
        return
    for call, name, method in calls(source):
        if owner(call) == "fs":  # privml.storage.fs itself
            continue
        if name == "open":
            if may_write(call, method=method):
                yield call.lineno, "opens a file for writing; use privml.storage.fs"
        elif method and name in FILE_CHANGERS:
            yield call.lineno, f"changes files through .{name}(); use privml.storage.fs"
        elif method and name == "replace" and len(call.args) == 1 and not call.keywords:
            yield call.lineno, "renames a file through .replace(); use privml.storage.fs"


def no_dynamic_code(source: Source) -> Findings:
    """Nothing is evaluated that was not written here."""
    for call, name, method in calls(source):
        if not method and name in {"__import__", "compile", "eval", "exec"}:
            yield call.lineno, f"runs code through {name}()"


def no_computed_attributes(source: Source) -> Findings:
    """Names that a peer could send never select attributes; lazy re-exports may."""
    if not source.library or source.path == "privml/_native.py":
        return
    lazy = {
        id(inner)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        for inner in ast.walk(node)
    }
    decodes = any(inside(source.module, name) for name in DECODERS)
    for call, name, method in calls(source):
        if method or name not in {"getattr", "setattr"} or len(call.args) < 2 or id(call) in lazy:
            continue
        selected = call.args[1]
        own_list = isinstance(selected, ast.Name) and not decodes  # a loop over our own fields
        if not own_list and not isinstance(constant(selected), str):
            yield call.lineno, f"{name}() with a computed name; dispatch on an enum"


def areas_through_privml(source: Source) -> Findings:
    """The areas have one import root; the bare name would load every class twice."""
    for line, name in imports(source):
        if name.partition(".")[0] in AREAS:
            yield line, f"imports {name}; write privml.{name}"


def torch_free(source: Source) -> Findings:
    """An auditor and a client process work without torch."""
    if source.module != "privml" and not any(
        inside(source.module, name) for name in TORCH_FREE - {"privml"}
    ):
        return
    for line, name in imports(source):
        if inside(name, "torch") or inside(name, "safetensors.torch"):
            yield line, f"imports {name} in a module that must load without torch"


def no_object_formats(source: Source) -> Findings:
    """Formats that run code on load appear nowhere, not even in tests."""
    for line, name in imports(source):
        if name.partition(".")[0] in OBJECT_FORMATS:
            yield line, f"imports {name}, a format that runs code on load"
    for call, name, method in calls(source):
        if method and (owner(call), name) in LOADERS:
            yield call.lineno, f"calls {owner(call)}.{name}"
        if any(k.arg == "allow_pickle" and constant(k.value) is not False for k in call.keywords):
            yield call.lineno, "allows pickled arrays"


def no_foreign_toolkits(source: Source) -> Findings:
    """Toolkits with a locked environment of their own are reached through a child process."""
    if source.path.startswith("examples/audits/peers/"):
        return
    for line, name in imports(source):
        for toolkit in FOREIGN_TOOLKITS:
            if inside(name, toolkit):
                yield line, f"imports {name}; run it in an environment of its own"


def no_constant_secrets(source: Source) -> Findings:
    """Keys of secret randomness are drawn, never written down."""
    if not source.library or source.path.startswith("privml/testing/"):
        return
    for call, name, _ in calls(source):
        if name != "Csprng":
            continue
        parts = [
            inner
            for value in (*call.args, *(k.value for k in call.keywords))
            for inner in ast.walk(value)
        ]
        written = any(isinstance(n, ast.Constant) and isinstance(n.value, bytes) for n in parts)
        drawn = any(isinstance(n, ast.Name) and n.id not in {"bytes", "bytearray"} for n in parts)
        if written and not drawn:
            yield call.lineno, "builds Csprng from a constant; use Csprng.fresh()"


RULES: tuple[Rule, ...] = (
    writes_only_in_storage,
    no_dynamic_code,
    no_computed_attributes,
    areas_through_privml,
    torch_free,
    no_object_formats,
    no_foreign_toolkits,
    no_constant_secrets,
)


def findings(rule: Rule, path: str, text: str) -> list[tuple[int, str]]:
    return list(rule(Source(path, text)))


BAD: tuple[tuple[Rule, str, str], ...] = (
    (writes_only_in_storage, "privml/a.py", "open('x', 'w')"),
    (writes_only_in_storage, "privml/a.py", "open('x', mode='ab')"),
    (writes_only_in_storage, "privml/a.py", "open('x', mode)"),
    (writes_only_in_storage, "protocols/a.py", "path.open('r+b')"),
    (writes_only_in_storage, "protocols/a.py", "path.open(mode=how)"),
    (writes_only_in_storage, "privml/a.py", "io.open('x', 'x')"),
    (writes_only_in_storage, "privml/a.py", "os.open(path, flags)"),
    (writes_only_in_storage, "valuation/a.py", "Path('x').write_text('y')"),
    (writes_only_in_storage, "privml/storage/wal.py", "path.write_bytes(b'')"),
    (writes_only_in_storage, "unlearning/a.py", "path.unlink()"),
    (writes_only_in_storage, "privml/a.py", "path.replace(other)"),
    (writes_only_in_storage, "privml/a.py", "shutil.rmtree(folder)"),
    (writes_only_in_storage, "privml/a.py", "words.tofile(f)"),
    (no_dynamic_code, "privml/a.py", "eval(text)"),
    (no_dynamic_code, "examples/a.py", "exec(text)"),
    (no_dynamic_code, "tests/a.py", "__import__(name)"),
    (no_dynamic_code, "privml/a.py", "compile(text, 'f', 'exec')"),
    (no_computed_attributes, "privml/wire.py", "getattr(module, name)"),
    (no_computed_attributes, "privml/wire.py", "getattr(module, header.kind, None)"),
    (no_computed_attributes, "protocols/a.py", "setattr(x, fields[0], 1)"),
    (areas_through_privml, "tests/a.py", "import protocols"),
    (areas_through_privml, "tests/a.py", "from protocols.mpc import ops"),
    (areas_through_privml, "privml/a.py", "def f():\n    import valuation.games as g"),
    (areas_through_privml, "examples/a.py", "from unlearning import forest"),
    (torch_free, "privml/wire.py", "import torch"),
    (torch_free, "privml/transport/tls.py", "def f():\n    from torch import nn"),
    (torch_free, "privml/__init__.py", "import torch.nn as nn"),
    (torch_free, "privml/errors.py", "from safetensors.torch import load_file"),
    (no_object_formats, "tests/a.py", "import pickle"),
    (no_object_formats, "privml/rng.py", "from joblib import load"),
    (no_object_formats, "tests/a.py", "import torch\ntorch.load('x')"),
    (no_object_formats, "tests/a.py", "numpy.load(path, allow_pickle=True)"),
    (no_foreign_toolkits, "privml/a.py", "import concrete.ml.sklearn"),
    (no_foreign_toolkits, "tests/a.py", "from concrete import ml"),
    (no_foreign_toolkits, "examples/audits/a.py", "import crypten"),
    (no_constant_secrets, "protocols/a.py", "Csprng(b'0' * 32)"),
    (no_constant_secrets, "privml/a.py", "rng.Csprng(key=bytes(b'0123'))"),
)

GOOD: tuple[tuple[Rule, str, str], ...] = (
    (writes_only_in_storage, "privml/storage/fs.py", "open('x', 'wb')"),
    (writes_only_in_storage, "tests/a.py", "path.write_text('y')"),
    (writes_only_in_storage, "privml/testing/a.py", "path.unlink()"),
    (writes_only_in_storage, "privml/storage/pool.py", "fs.unlink(path)"),
    (writes_only_in_storage, "privml/a.py", "open('x')"),
    (writes_only_in_storage, "privml/a.py", "path.open('rb')"),
    (writes_only_in_storage, "privml/a.py", "Session.open(channel, rank=0)"),
    (writes_only_in_storage, "privml/a.py", "name.replace('a', 'b')"),
    (writes_only_in_storage, "privml/a.py", "dataclasses.replace(plan, n=3)"),
    (no_dynamic_code, "privml/a.py", "model.eval(); re.compile('x')"),
    (no_computed_attributes, "privml/a.py", "getattr(x, 'shape')"),
    (no_computed_attributes, "privml/a.py", "[getattr(x, name) for name in FIELDS]"),
    (
        no_computed_attributes,
        "privml/__init__.py",
        "def __getattr__(name):\n    return getattr(load(), name)",
    ),
    (areas_through_privml, "tests/a.py", "from privml.protocols import mpc"),
    (areas_through_privml, "protocols/mpc/a.py", "from . import shares"),
    (torch_free, "privml/backbones/encoder.py", "import torch"),
    (torch_free, "privml/wire.py", "import torchlike"),
    (no_object_formats, "tests/a.py", "numpy.load(path, allow_pickle=False)"),
    (no_object_formats, "tests/a.py", "safetensors.load(data)"),
    (no_foreign_toolkits, "examples/audits/peers/a.py", "import crypten"),
    (no_constant_secrets, "protocols/a.py", "Csprng(key); Csprng.fresh().child('pool')"),
    (no_constant_secrets, "privml/rng.py", "Csprng(expand(self.key, b'child'))"),
    (no_constant_secrets, "privml/testing/a.py", "Csprng(b'0' * 32)"),
)


def label(sample: tuple[Rule, str, str]) -> str:
    return f"{sample[0].__name__}-{sample[1]}"


@pytest.mark.parametrize("sample", BAD, ids=label)
def test_rule_catches_a_bad_sample(sample: tuple[Rule, str, str]) -> None:
    assert findings(*sample)


@pytest.mark.parametrize("sample", GOOD, ids=label)
def test_rule_leaves_a_good_sample_alone(sample: tuple[Rule, str, str]) -> None:
    assert findings(*sample) == []


def test_every_rule_has_samples_of_both_kinds() -> None:
    for samples in (BAD, GOOD):
        assert {rule for rule, _, _ in samples} == set(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_repository_keeps_the_rule(rule: Rule, repository: dict[str, str]) -> None:
    broken = [
        f"{path}:{line}: {what}"
        for path, text in repository.items()
        if path.endswith(".py")
        for line, what in rule(Source(path, text))
    ]
    assert not broken, "\n".join(["", *broken])
