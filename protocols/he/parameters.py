"""CKKS parameters: degree, primes and scale, chosen by depth and checked for 128-bit security.

The limit on the bits of all primes, the special one included, is for ternary secrets and 128-bit
classical security (the table of the homomorphic encryption standard, as in OpenFHE). SEAL checks
the same limit once more when keys are made; that check is never switched off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from privml.errors import DepthExceeded, InsecureParameters, ParameterError

MAX_MODULUS_BITS: Final = {4096: 109, 8192: 218, 16384: 438}
"""Most bits of all primes together, by degree."""

HEADROOM_BITS: Final = 10
"""Scores may reach 2^(HEADROOM_BITS - 1) before they wrap."""

_LEAST_SCALE, _MOST_SCALE = 30, 45


@dataclass(frozen=True)
class CkksParameters:
    """Parameters of one scheme.

    Attributes
    ----------
    degree
        Of the ring, a power of two; half of it are slots.
    scale_bits
        Bits of the scale, and of each prime that a rescaling drops.
    depth
        Rescalings that a ciphertext can go through.

    Raises
    ------
    InsecureParameters
        Fewer than 128 bits of security.
    ParameterError
        A value is out of range.
    """

    degree: int
    scale_bits: int
    depth: int

    def __post_init__(self) -> None:
        if self.degree not in MAX_MODULUS_BITS:
            raise ParameterError(
                f"degree {self.degree}: choose {', '.join(map(str, MAX_MODULUS_BITS))}"
            )
        if not _LEAST_SCALE <= self.scale_bits <= _MOST_SCALE or not 1 <= self.depth <= 32:
            raise ParameterError(
                f"a scale has {_LEAST_SCALE} to {_MOST_SCALE} bits and the depth is 1 to 32, not "
                f"{self.scale_bits} and {self.depth}"
            )
        if self.margin_bits < 0:
            raise InsecureParameters(
                f"primes of {self.modulus_bits} bits at degree {self.degree}; 128-bit security "
                f"allows {MAX_MODULUS_BITS[self.degree]}; take fewer levels or a larger degree"
            )

    @property
    def prime_bits(self) -> tuple[int, ...]:
        """Bits of each prime: first, those that rescalings drop from last to first, special."""
        outer = self.scale_bits + HEADROOM_BITS
        return (outer, *[self.scale_bits] * self.depth, outer)

    @property
    def modulus_bits(self) -> int:
        """Bits of all primes."""
        return sum(self.prime_bits)

    @property
    def margin_bits(self) -> int:
        """Bits below the limit of 128-bit security."""
        return MAX_MODULUS_BITS[self.degree] - self.modulus_bits

    @property
    def slots(self) -> int:
        """Numbers in one ciphertext."""
        return self.degree // 2

    def to_dict(self) -> dict[str, int | list[int]]:
        """Return plain values for a report."""
        return {
            "degree": self.degree, "scale_bits": self.scale_bits, "depth": self.depth,
            "prime_bits": list(self.prime_bits), "modulus_bits": self.modulus_bits,
            "margin_bits": self.margin_bits,
        }  # fmt: skip

    @classmethod
    def for_depth(cls, depth: int, *, slots: int = 1, layer: str = "") -> CkksParameters:
        """Return the cheapest parameters of a depth.

        Parameters
        ----------
        depth
            Rescalings needed.
        slots
            Slots that one image needs.
        layer
            What to name if it is too deep.

        Raises
        ------
        DepthExceeded
            No degree up to 16384 has room for it.
        """
        for degree, limit in MAX_MODULUS_BITS.items():
            scale = min((limit - 2 * HEADROOM_BITS) // (depth + 2), _MOST_SCALE)
            if scale >= _LEAST_SCALE and slots <= degree // 2:
                return cls(degree, scale, depth)
        degree, limit = max(MAX_MODULUS_BITS.items())
        most = (limit - 2 * HEADROOM_BITS) // _LEAST_SCALE - 2
        raise DepthExceeded(
            f"{layer or 'the network'}: {depth} multiplicative levels and {slots} slots an image; "
            f"degree {degree} has room for {most} levels and {degree // 2} slots. Remove an "
            "activation, use fewer features, or use the TFHE scheme",
            layer=layer,
            value=depth,
            limit=most,
        )
