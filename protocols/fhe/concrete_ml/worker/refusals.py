"""What a worker says when it cannot do what it was asked for."""

from __future__ import annotations


class Refusal(Exception):
    """A request is refused; ``kind`` is ``parameter``, ``unsupported`` or ``malformed``."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
