"""Deliberately broken protocol stacks, each of which a named check must catch.

A mutant is one mistake that was made somewhere or is easy to make: most give correct outputs and
leak, some are only wrong at an edge. The test suite asserts that the named check catches each one
and passes on the honest stack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privml.protocols.mpc.fields import Array, Seeds
from privml.protocols.mpc.primitive import Context, Primitive
from privml.rng import Csprng
from privml.testing import broken, broken_masks, broken_prune, broken_rows
from privml.testing.cases import fresh_seeds, retyped
from privml.testing.checks import Build
from privml.testing.simulate import fixed_seeds


@dataclass(frozen=True)
class Mutant:
    """A broken stack.

    Attributes
    ----------
    name
        Short name.
    breaks
        What is wrong with it.
    check, on
        Name of the check that must catch it, and what the check is run on.
    build
        The broken stack.
    """

    name: str
    breaks: str
    check: str
    on: str
    build: Build


def swapped(kind: type[Primitive]) -> Build:
    """Stack in which a broken primitive stands for every one of its name."""

    def change(prim: Primitive) -> Primitive:
        return retyped(prim, kind) if prim.name == kind.name else prim

    return Build(primitive=change)


def drawing(kind: type[Csprng]) -> Build:
    """Stack that draws all correlations from a broken generator."""

    def seeds() -> Seeds:
        return Seeds((kind(_key()), kind(_key())), Csprng.fresh())

    return Build(seeds=seeds)


def _key() -> bytes:
    return Csprng.fresh().token(32)


def _constant() -> Seeds:
    return fixed_seeds(7)


def _one_for_both() -> Seeds:
    run = Csprng.fresh()
    return Seeds((run, run), Csprng.fresh())


def _one_setup() -> Seeds:
    honest = fresh_seeds()
    return Seeds(honest.runs, fixed_seeds(7).setup)


def _padding_to_server(ctx: Context, *, padding: Array) -> None:
    """Send which positions are padding, for the server to mask."""
    if ctx.rank == 1:
        ctx.send(padding)
    else:
        ctx.recv((padding.shape, "u8"))


def _only_tokens(ctx: Context, *, padding: Array) -> None:
    """Send a length first and then as many masked words as there are tokens."""
    if ctx.rank == 1:
        count = int((padding == 0).sum())
        ctx.send(np.array([count], np.uint64))
        ctx.send(Csprng.fresh().words(count, 0))
        return
    (told,) = ctx.recv(((1,), "u8"))
    ctx.recv(((int(told[0]),), "u8"))


def _mutant(name: str, breaks: str, where: str, build: Build | Callable[[], Build]) -> Mutant:
    check, _, on = where.partition(":")
    return Mutant(name, breaks, check, on, build if isinstance(build, Build) else build())


MUTANTS: tuple[Mutant, ...] = (
    _mutant("unmasked_open", "a truncation opens the value itself", "view:truncate",
            swapped(broken.UnmaskedTruncate)),
    _mutant("zero_mask", "a product takes zeros for its masks", "view:mul",
            swapped(broken.ZeroMaskMul)),
    _mutant("mask_reused", "one mask hides both factors of a product", "view:mul",
            swapped(broken.OneMaskMul)),
    _mutant("factor_mask_reused", "one mask hides a row and its factor", "view:scale_rows",
            swapped(broken_rows.OneRowMask)),
    _mutant("cubic_mask_reused", "one mask hides the cubics of all intervals", "view:row_power",
            swapped(broken_rows.OneCubicMask)),
    _mutant("next_interval", "a power takes the factor of the next interval", "oracle:row_power",
            swapped(broken_rows.NextInterval)),
    _mutant("mean_in_the_open", "the mean of a row is opened unmasked", "view:moments",
            swapped(broken_rows.MeanInTheOpen)),
    _mutant("no_cross_term", "moments leave out a product of two masks", "oracle:moments",
            swapped(broken_rows.NoCrossTerm)),
    _mutant("group_mask_reused", "one mask hides the four values of a group", "view:maximum",
            swapped(broken_rows.OneGroupMask)),
    _mutant("last_wins", "a maximum reads one comparison the wrong way round", "oracle:maximum",
            swapped(broken_rows.LastWins)),
    _mutant("unmasked_affine", "an affine map opens its input", "view:affine",
            swapped(broken_rows.UnmaskedAffine)),
    _mutant("affine_mask_reused", "one mask hides both openings of an affine map", "view:affine",
            swapped(broken_masks.OneAffineMask)),
    _mutant("no_mean_wrap", "the mean leaves out the correction for the wrap", "oracle:moments",
            swapped(broken_rows.NoMeanWrap)),
    _mutant("strict_interval", "an interval begins above its threshold", "oracle:row_power",
            swapped(broken_rows.StrictInterval)),
    _mutant("interval_bits_one_mask", "the bits of all intervals have one mask", "view:row_power",
            swapped(broken_masks.OneIntervalBit)),
    _mutant("interval_trees_one_mask", "thresholds of a power share node masks", "view:row_power32",
            swapped(broken_masks.OneIntervalTree)),
    _mutant("opening_mask_again", "cubics have the mask of the value's opening", "view:row_power",
            swapped(broken_masks.CubicUnderOpening)),
    _mutant("pair_bits_one_mask", "the six comparisons of a group have one mask", "view:maximum",
            swapped(broken_masks.OnePairBit)),
    _mutant("pair_trees_one_mask", "the six comparisons of a group share node masks",
            "view:maximum", swapped(broken_masks.OnePairTree)),
    _mutant("short_maximum", "a maximum looks at too few bits", "oracle:maximum",
            swapped(broken_rows.ShortMaximum)),
    _mutant("digit_trees_one_mask", "wrap and clip of exp share node masks", "view:exp",
            swapped(broken_masks.OneDigitTree)),
    _mutant("exp_bits_one_mask", "exp opens two bits under one mask", "view:exp",
            swapped(broken_masks.OneExpBit)),
    _mutant("gelu_bits_one_mask", "GELU opens three bits under one mask", "view:gelu24",
            swapped(broken_masks.OneGeluBit)),
    _mutant("low_gelu_bits_one_mask", "the low GELU opens two bits under one mask",
            "view:gelu_low24", swapped(broken_masks.OneLowGeluBit)),
    _mutant("short_trees_one_mask", "thresholds of a short comparison share node masks",
            "view:compare16", swapped(broken_masks.OneShortTree)),
    _mutant("too_short", "a short comparison looks at too few bits", "oracle:compare16",
            swapped(broken.TooShort)),
    _mutant("short_range", "masks are drawn below 2^63", "view:truncate",
            drawing(broken.ShortRange)),
    _mutant("modulo_bias", "masks are drawn modulo a number that is no power of two", "view:mul",
            drawing(broken.ModuloBias)),
    _mutant("period_mask", "exp masks x within one period only", "view:exp",
            drawing(broken.OnePeriod)),
    _mutant("one_stream", "all fields of one item come from one keystream", "view:mul",
            drawing(broken.OneStream)),
    _mutant("constant_seed", "every session has the same keys", "fresh:truncate",
            Build(seeds=_constant)),
    _mutant("one_seed_for_both", "both parties hold the same key", "view:truncate",
            Build(seeds=_one_for_both)),
    _mutant("clear_corrections", "corrections are the values themselves", "view:truncate",
            Build(supply=broken.ClearCorrections)),
    _mutant("no_offset", "a truncation leaves out the 2^62 offset", "oracle:truncate",
            swapped(broken.NoOffset)),
    _mutant("no_wrap_correction", "a truncation leaves out the correction for the wrap",
            "oracle:truncate", swapped(broken.NoWrapCorrection)),
    _mutant("local_truncation", "each party shifts its own share", "oracle:truncate",
            swapped(broken.LocalTruncate)),
    _mutant("both_floor", "both parties round down", "bias:truncate", swapped(broken.BothFloor)),
    _mutant("swapped_beaver", "the opened differences meet the wrong masks", "oracle:mul",
            swapped(broken.SwappedMul)),
    _mutant("bias_twice", "both parties add the bias of a linear layer", "oracle:linear",
            swapped(broken.BiasTwice)),
    _mutant("shared_node_masks", "thresholds on one value share the masks of their trees",
            "view:compare3", swapped(broken.SharedNodeMasks)),
    _mutant("wrong_chunk", "chunks of c meet the one-hot words of the next chunk",
            "oracle:compare", swapped(broken.WrongChunk)),
    _mutant("strict_threshold", "a comparison is strict", "oracle:compare",
            swapped(broken.StrictCompare)),
    _mutant("no_clip", "exp leaves out the clip bit", "oracle:exp", swapped(broken.NoClip)),
    _mutant("no_wrap_bit", "exp leaves out the wrap bit", "oracle:exp", swapped(broken.NoWrapBit)),
    _mutant("gelu_last_term", "GELU adds x from 0 on instead of from T on", "oracle:gelu",
            swapped(broken.GeluLastTerm)),
    _mutant("unmasked_bit", "a selection opens its bit", "view:select",
            swapped(broken.UnmaskedSelect)),
    _mutant("unmasked_reply", "the server's answer of a linear layer has no mask of its own",
            "view:linear", swapped(broken.UnmaskedReply)),
    _mutant("unmasked_product", "the client sends its product of a linear layer unmasked",
            "view:linear", swapped(broken.UnmaskedProduct)),
    _mutant("output_to_server", "the result is opened to both parties", "view:reveal",
            swapped(broken.RevealToBoth)),
    _mutant("second_weight_one_mask", "the weights of two pools are opened under one mask",
            "setup:w", Build(seeds=_one_setup)),
    _mutant("query_mask_reused", "two queries have the same mask of X", "queries:linear_exact",
            Build(supply=broken.FirstItemAgain)),
    _mutant("correlation_again", "a supply hands out what is asked for", "order:supply",
            Build(pool_supply=broken.ObligingSupply)),
    _mutant("unmasked_keys", "a compaction opens its row keys without a mask", "shuffle:compact",
            swapped(broken_prune.UnmaskedKeys)),
    _mutant("keys_before_shuffle", "row keys are opened before the shuffle", "shuffle:compact",
            swapped(broken_prune.KeysBeforeShuffle)),
    _mutant("identity_shuffle", "the shuffle moves nothing", "shuffle:compact",
            swapped(broken_prune.IdentityShuffle)),
    _mutant("server_shuffle", "the server knows the permutation", "shuffle:compact",
            swapped(broken_prune.OneSidedShuffle)),
    _mutant("client_shuffle", "the client knows the permutation", "shuffle:compact",
            swapped(broken_prune.OneSidedByClient)),
    _mutant("shuffle_reused", "two compactions have one permutation", "shuffle:compact",
            swapped(broken_prune.SameShuffle)),
    _mutant("residual_stays", "the residual of a row stays where it was", "oracle:compact",
            swapped(broken_prune.ResidualStays)),
    _mutant("reversed_ties", "rows of one class change their order", "oracle:stable_keys",
            swapped(broken_prune.ReversedTies)),
    _mutant("unmasked_classes", "a sort opens class bits without a mask", "shuffle:stable_keys",
            swapped(broken_prune.UnmaskedClasses)),
    _mutant("no_low_clip", "the low exp leaves out the clip bit", "oracle:exp_low",
            swapped(broken_prune.NoLowClip)),
    _mutant("low_margin", "the low exp keeps what is rounded up to its clip", "oracle:exp_low",
            swapped(broken_prune.LowMargin)),
    _mutant("one_bit_mask", "the low exp opens two bits under one mask", "view:exp_low",
            swapped(broken_prune.OneBitMask)),
    _mutant("no_low_zero", "the low GELU is a parabola on all negative x", "oracle:gelu_low",
            swapped(broken_prune.NoLowZero)),
    _mutant("one_block", "a product of several blocks has the correction of one",
            "oracle:block_matmul", swapped(broken_prune.OneBlock)),
    _mutant("padding_to_server", "the client sends its padding mask", "program:encoder",
            Build(prologue=_padding_to_server)),
    _mutant("size_depends_on_text", "the client sends tokens without padding", "program:encoder",
            Build(prologue=_only_tokens)),
)  # fmt: skip
"""The corpus."""
