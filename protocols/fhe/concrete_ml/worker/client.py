"""Client verbs: keys, encryption, decryption. The secret key leaves only by ``secret_keys``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from .frames import Frame, blob  # noqa: TID251
from .refusals import Refusal  # noqa: TID251


class Client:
    """State of a client process: the program's public parameters, and keys once drawn."""

    def __init__(self) -> None:
        self._native: Any = import_module("concrete.compiler")
        self._info: Any = None
        self._keys: Any = None
        self._function = ""

    def verbs(self) -> Mapping[str, Callable[[Frame], Frame]]:
        """Return what this role answers."""
        return {
            "load": self.load,
            "keygen": self.keygen,
            "secret_keys": self.secret_keys,
            "use_secret_keys": self.use_secret_keys,
            "encrypt": self.encrypt,
            "decrypt": self.decrypt,
        }

    def load(self, request: Frame) -> Frame:
        """Take the public parameters of a program; keys of an earlier one are dropped."""
        self._info = self._native.ProgramInfo.deserialize(request.arrays["info"].tobytes())
        functions = self._info.function_list()
        if len(functions) != 1:
            raise Refusal("malformed", "the program has more than one function")
        self._function, self._keys = functions[0], None
        return Frame({})

    def keygen(self, request: Frame) -> Frame:
        """Draw keys from the operating system's entropy; return the evaluation keys."""
        del request
        self._require_program()
        entropy = (0, 0, 0, 0)  # zero asks the library for the operating system's entropy
        self._keys = self._native.Keyset(self._info, None, *entropy, None)
        return self._evaluation_keys()

    def secret_keys(self, request: Frame) -> Frame:
        """Return secret and evaluation keys, for the client's own disk."""
        del request
        return Frame({}, {"keys": blob(bytes(self._present().serialize()))})

    def use_secret_keys(self, request: Frame) -> Frame:
        """Take keys that ``secret_keys`` returned; return the evaluation keys."""
        self._require_program()
        self._keys = self._native.Keyset.deserialize(request.arrays["keys"].tobytes())
        return self._evaluation_keys()

    def encrypt(self, request: Frame) -> Frame:
        """Return one query per row of ``rows``, int64 of shape (n, features)."""
        circuit = self._circuit()
        queries = {}
        for number, row in enumerate(request.arrays["rows"]):
            # The library reads an array that is not contiguous in the wrong order.
            value = self._native.Value(np.ascontiguousarray(row[None], np.int64))
            queries[str(number)] = blob(bytes(circuit.prepare_input(value, 0).serialize()))
        return Frame({}, queries)

    def decrypt(self, request: Frame) -> Frame:
        """Return the integers in the answers ``0``, ``1``, and so on, int64 (n, *shape)."""
        circuit = self._circuit()
        rows = []
        for number in range(len(request.arrays)):
            data = request.arrays[str(number)].tobytes()
            value = self._native.TransportValue.deserialize(data)
            rows.append(np.asarray(circuit.process_output(value, 0).to_py_val(), np.int64)[0])
        return Frame({}, {"rows": np.stack(rows)})

    def _evaluation_keys(self) -> Frame:
        return Frame({}, {"keys": blob(bytes(self._keys.get_server_keys().serialize()))})

    def _require_program(self) -> None:
        if self._info is None:
            raise Refusal("malformed", "no program was loaded")

    def _present(self) -> Any:  # noqa: ANN401
        if self._keys is None:
            raise Refusal("parameter", "the client has no keys yet; call keygen() first")
        return self._keys

    def _circuit(self) -> Any:  # noqa: ANN401
        program = self._native.ClientProgram.create_encrypted(self._info, self._present())
        return program.get_client_circuit(self._function)
