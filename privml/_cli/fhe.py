"""``privml fhe``: the verbs of encrypted images and their options; each loads what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from privml._cli.output import Output

_ABOUT = "Images classified under encryption: a client with the keys, a server that sees nothing."

fhe = typer.Typer(
    name="fhe",
    help=_ABOUT,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Results only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, or graph.safetensors.")]
Photos = Annotated[
    list[Path], typer.Argument(metavar="IMAGE...", help="JPEG files, .npy arrays, or folders.")
]
PError = Annotated[
    float | None,
    typer.Option("--p-error", help="Of a wrong table [default: 0.01; with --exact 2^-40]."),
]
Exact = Annotated[bool, typer.Option("--exact", help="Exact rounding; slower, no measuring.")]
Calibration = Annotated[
    Path | None, typer.Option("--calibration", help="Folder that `fhe calibrate` wrote to.")
]
Identity = Annotated[
    str | None, typer.Option("--identity", metavar="DIR/NAME", help="Certificate of this side.")
]
Signer = Annotated[
    list[str] | None,
    typer.Option("--signer", metavar="SHA256", help="Whose bundles are trusted; repeatable."),
]
Bundle = Annotated[Path, typer.Option("--bundle", metavar="DIR", help="The client's bundle.")]
Keys = Annotated[Path, typer.Option("--keys", metavar="DIR", help="Key ring of `fhe keygen`.")]
SaveSecret = Annotated[
    bool,
    typer.Option("--save-secret-key", help="Write the secret key to disk, mode 0600."),
]
Licence = Annotated[
    bool,
    typer.Option("--accept-licence", help="The notice of concrete-python was read."),
]


@fhe.command()
def train(
    data: Annotated[Path, typer.Option(help="Folder with one sub-folder of JPEG files per class.")],
    out_dir: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    net: Annotated[
        Literal["small", "small-residual", "resnet20", "resnet18", "square"],
        typer.Option(help="Network; square: layers of squares, for CKKS."),
    ] = "small",
    block: Annotated[int, typer.Option(help="Pixels on the side of a cell: 2, 4, 8.")] = 2,
    channels: Annotated[str, typer.Option(help="Coefficients: y4c1, y3, full, ...")] = "full",
    control: Annotated[str, typer.Option(help="dct, or a control: pixel, mean-pool, ...")] = "dct",
    size: Annotated[int | None, typer.Option(help="Side in pixels [the first image's].")] = None,
    widths: Annotated[str, typer.Option(help="Channels of the layers, like 16,16,16.")] = "",
    skip_downsample: Annotated[int, typer.Option(help="Halvings left out (resnet).")] = 0,
    weight_bits: Annotated[int, typer.Option(help="Bits of weights, 2 to 8.")] = 4,
    act_bits: Annotated[int, typer.Option(help="Bits of activations, 2 to 8.")] = 4,
    round_to: Annotated[int, typer.Option(help="Bits that tables see.")] = 6,
    epochs: Annotated[int, typer.Option(min=0, help="Passes in floating point.")] = 20,
    tuning_epochs: Annotated[int, typer.Option(min=0, help="Passes with integers.")] = 8,
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 128,
    held: Annotated[float, typer.Option(min=0.0, max=0.5, help="Share kept for the report.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Fit the front end and train a network for encrypted images."""
    from privml._cli import fhe_train as verb

    options = verb.Options(
        data=data, out=out_dir, net=net, block=block, channels=channels, control=control, size=size,
        widths=verb.widths_of(widths), skip_downsample=skip_downsample, weight_bits=weight_bits,
        act_bits=act_bits, round_to=round_to, epochs=epochs, tuning_epochs=tuning_epochs,
        batch=batch, held=held, seed=seed, resume=resume,
    )  # fmt: skip
    with Output() as out:
        verb.run(out, options)


@fhe.command()
def plan(
    model: Model, p_error: PError = None, exact: Exact = False,
    round_to: Annotated[
        int | None, typer.Option(help="Bits that tables see [default: the model's].")
    ] = None,
    calibration: Calibration = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="The same network behind the control front ends.")
    ] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Show tables, bits, seconds, memory and faults of one image, before anything is compiled."""
    from privml._cli import fhe_plan as verb

    with Output() as out:
        verb.plan(
            out, model, p_error=p_error, exact=exact, round_to=round_to, calibration=calibration,
            controls=controls,
        )  # fmt: skip


@fhe.command()
def compile(  # noqa: A001 - the verb's name
    model: Model,
    out_dir: Annotated[Path, typer.Option("--out", help="New folder for both bundles.")],
    identity: Identity = None, p_error: PError = None, exact: Exact = False,
    images: Annotated[
        list[Path] | None,
        typer.Option("--measure", metavar="IMAGES", help="Measure disagreement on these."),
    ] = None,
    labels: Annotated[str, typer.Option(help="Names of the classes, separated by commas.")] = "",
    accept_licence: Licence = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Compile a model once and write signed bundles for server and client."""
    from privml._cli import fhe_plan as verb

    with Output() as out:
        verb.compile_bundles(
            out, model, folder=out_dir, identity=identity, p_error=p_error, exact=exact,
            measure=tuple(images or ()), labels=labels, accepted=accept_licence,
        )  # fmt: skip


@fhe.command()
def show(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Of server or client.")],
    identity: Identity = None, signer: Signer = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Check the signature and all digests of a bundle and print its manifest."""
    from privml._cli import fhe_local as verb

    with Output() as out:
        verb.show(out, bundle, identity=identity, signers=tuple(signer or ()))


@fhe.command()
def keygen(
    bundle: Bundle,
    keys: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the keys.")],
    identity: Identity = None, signer: Signer = None, save_secret_key: SaveSecret = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Draw a client's keys and keep them on this machine."""
    from privml._cli import fhe_local as verb

    with Output() as out:
        verb.keygen(
            out, bundle, keys=keys, identity=identity, signers=tuple(signer or ()),
            save=save_secret_key,
        )  # fmt: skip


@fhe.command()
def encrypt(
    photos: Photos, bundle: Bundle, keys: Keys,
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder, one a query.")],
    identity: Identity = None, signer: Signer = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Encrypt images into files that may leave this machine."""
    from privml._cli import fhe_local as verb

    with Output() as out:
        verb.encrypt(
            out, photos, bundle=bundle, keys=keys, folder=out_dir, identity=identity,
            signers=tuple(signer or ()),
        )  # fmt: skip


@fhe.command()
def decrypt(
    answers: Annotated[list[Path], typer.Argument(metavar="ANSWER...", help="Files or folders.")],
    bundle: Bundle, keys: Keys, identity: Identity = None, signer: Signer = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Decrypt a server's answers; give the scores to nobody."""
    from privml._cli import fhe_local as verb

    with Output() as out:
        verb.decrypt(
            out, answers, bundle=bundle, keys=keys, identity=identity, signers=tuple(signer or ())
        )


@fhe.command()
def serve(
    bundle: Annotated[
        list[Path], typer.Option("--bundle", metavar="DIR", help="A server's bundle; repeatable.")
    ],
    identity: Identity = None, signer: Signer = None,
    pin: Annotated[
        list[str] | None,
        typer.Option("--pin", metavar="SHA256", help="A client's fingerprint; repeatable."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="Keeps evaluation keys.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 7722,
    threads: Annotated[int, typer.Option(min=1, help="Threads of one computation.")] = 1,
    images: Annotated[
        int | None, typer.Option(min=1, help="End after so many images [default: never].")
    ] = None,
    keep_s: Annotated[float, typer.Option(min=1, help="Seconds that answers are kept.")] = 3600.0,
    key_clients: Annotated[int, typer.Option(min=1, help="Most clients whose keys are kept.")] = 64,
    key_mb: Annotated[float, typer.Option(min=1, help="Most MB of keys on disk.")] = 8192.0,
    answers_mb: Annotated[float, typer.Option(min=1, help="Most MB of answers in memory.")] = 256.0,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="One query from stdin, its answer to stdout.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="With --stdin: the client's evaluation.keys.")
    ] = None,
    accept_licence: Licence = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Compute for pinned clients without seeing image, coefficients or scores."""
    from privml._cli import fhe_serve as verb

    options = verb.Options(
        bundles=tuple(bundle), identity=identity, signers=tuple(signer or ()),
        pins=tuple(pin or ()), state=state, host=host, port=port, threads=threads, images=images,
        keep_s=keep_s, key_clients=key_clients, key_mb=key_mb, answers_mb=answers_mb, keys=keys,
        accepted=accept_licence,
    )  # fmt: skip
    with Output() as out:
        verb.once(options) if stdin else verb.run(out, options)


@fhe.command()
def query(
    photos: Photos,
    peer: Annotated[str, typer.Option(help="Address of the server, host:port.")],
    pin: Annotated[str, typer.Option("--pin", metavar="SHA256", help="The server's fingerprint.")],
    identity: Identity = None, signer: Signer = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", metavar="DIR", help="[default: the server sends it]."),
    ] = None,
    program: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Id of the program that is expected.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="Key ring [default: keys for this call]."),
    ] = None,
    job: Annotated[
        Path | None, typer.Option("--job", metavar="FILE", help="Notes the batch, to go on later.")
    ] = None,
    save_secret_key: SaveSecret = False,
    connect: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="To wait for the server.")
    ] = 30.0,
    patience: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="To reconnect without progress.")
    ] = 120.0,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Have a remote server classify images; only you learn image and scores."""
    from privml._cli import fhe_query as verb

    options = verb.Options(
        photos=tuple(photos), peer=peer, pin=pin, identity=identity, signers=tuple(signer or ()),
        bundle=bundle, program=program, keys=keys, job=job, save=save_secret_key,
        connect_s=connect, patience_s=patience,
    )  # fmt: skip
    with Output() as out:
        verb.run(out, options)


@fhe.command()
def predict(
    model: Model, photos: Photos,
    mode: Annotated[
        Literal["clear", "simulate", "execute"], typer.Option(help="How; there is no fallback.")
    ] = "clear",
    p_error: PError = None, exact: Exact = False,
    images: Annotated[
        list[Path] | None,
        typer.Option("--measure", metavar="IMAGES", help="With execute: measure faults on these."),
    ] = None,
    labels: Annotated[str, typer.Option(help="Names of the classes, separated by commas.")] = "",
    accept_licence: Licence = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """LOCAL: client and server in this one process, for trying a model."""
    from privml._cli import fhe_predict as verb

    with Output() as out:
        verb.run(
            out, model, photos, mode=mode, p_error=p_error, exact=exact,
            measure=tuple(images or ()), labels=labels, accepted=accept_licence,
        )  # fmt: skip


@fhe.command()
def calibrate(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the file of this machine.")],
    p_error: Annotated[float, typer.Option("--p-error", help="Of a wrong table.")] = 1e-2,
    bits: Annotated[str, typer.Option(help="Widths of tables, the most important first.")] = "6,5",
    seconds: Annotated[
        float, typer.Option(min=0, help="Begin no width that ends later; 0: measure all.")
    ] = 10.0,
    accept_licence: Licence = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """LOCAL: measure what tables cost on this machine, for plans."""
    from privml._cli import fhe_predict as verb

    with Output() as out:
        verb.calibrate(
            out, folder=folder, p_error=p_error, bits=bits, seconds=seconds,
            accepted=accept_licence,
        )  # fmt: skip


@fhe.command("install-concrete-ml")
def install_concrete_ml(
    python: Annotated[
        Path | None, typer.Option(help="A Python 3.11 [default: this one, or the one on PATH].")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Only say whether it is there.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it.")] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Build the environment for scikit-learn models: 1.5 GB to download, 3 GB, some minutes."""
    from privml._cli import fhe_worker as verb

    with Output() as out:
        verb.run(out, python=python, status=status, remove=remove)


@fhe.command()
def bench(
    model: Model, photos: Photos,
    images: Annotated[int, typer.Option(min=1, help="Images under encryption.")] = 1,
    p_error: PError = None, exact: Exact = False, calibration: Calibration = None,
    accept_licence: Licence = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """LOCAL: run clear, simulated and encrypted, and compare with the plan."""
    from privml._cli import fhe_predict as verb

    with Output() as out:
        verb.bench(
            out, model, photos, images=images, p_error=p_error, exact=exact,
            calibration=calibration, accepted=accept_licence,
        )  # fmt: skip
