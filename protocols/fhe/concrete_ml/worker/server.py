"""Server verbs: it loads a program and evaluation keys, and runs queries. It never sees a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .frames import Frame, blob  # noqa: TID251
from .refusals import Refusal  # noqa: TID251


class Server:
    """State of a server process: one program, and the evaluation keys of one client."""

    def __init__(self) -> None:
        self._native: Any = import_module("concrete.compiler")
        self._circuit: Any = None
        self._keys: Any = None

    def verbs(self) -> Mapping[str, Callable[[Frame], Frame]]:
        """Return what this role answers."""
        return {"load": self.load, "use_keys": self.use_keys, "run": self.run}

    def load(self, request: Frame) -> Frame:
        """Load the program in the folder named ``folder``; its digest was checked before."""
        library = self._native.Library(request.fields["folder"])
        functions = library.get_program_info().function_list()
        if len(functions) != 1:
            raise Refusal("malformed", "the program has more than one function")
        program = self._native.ServerProgram(library, False)
        self._circuit, self._keys = program.get_server_circuit(functions[0]), None
        return Frame({})

    def use_keys(self, request: Frame) -> Frame:
        """Take the evaluation keys of the client whose queries follow."""
        data = request.arrays["keys"].tobytes()
        self._keys = self._native.ServerKeyset.deserialize(data)
        return Frame({})

    def run(self, request: Frame) -> Frame:
        """Return the encrypted answer to one query."""
        if self._circuit is None or self._keys is None:
            raise Refusal("malformed", "program and evaluation keys come before a query")
        query = self._native.TransportValue.deserialize(request.arrays["query"].tobytes())
        (answer,) = self._circuit.call([query], self._keys)
        return Frame({}, {"answer": blob(bytes(answer.serialize()))})
