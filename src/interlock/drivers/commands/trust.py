"""`interlock drivers sign` and `verify`: sign drivers and verify their signatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.drivers.commands.options import DriverArgument, DriversArgument
from interlock.terminal import config_source, output
from interlock.terminal.options import Json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from interlock.drivers.commands.workspace import DriverProject


def sign(
    driver: DriverArgument,
    key: Annotated[
        Path,
        typer.Option(
            "--key",
            metavar="PEM",
            help="Your private key (Ed25519), or the name of a key that `interlock keys new` "
            "created.",
        ),
    ],
    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            "--passphrase-file",
            metavar="FILE",
            help="Read the passphrase from the first line of this file.",
        ),
    ] = None,
    config: config_source.ConfigOption = None,
) -> None:
    """Sign a driver. A node that trusts the key uses the driver until one of its files changes.

    The signature covers DRIVER.md, SECRETS.md, driver.py and server.json and is written into
    DRIVER.sig beside them. Contracts are not signed, because several drivers can share one.

    \b
    Example:
      interlock drivers sign filesystem-mcp --key release.pem
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.errors import CONFIG, InterlockError
    from interlock.manifests.signatures import key_id
    from interlock.manifests.signatures import sign as signed
    from interlock.terminal import operator_key

    folder = open_project(config).folder_of(driver)
    path = operator_key.choose_key(key)
    operator_key.check_key_file(path)
    operator_key.warn_if_readable(path)
    private = operator_key.load_key(path, passphrase_file)
    try:
        signature_file = signed(folder, private)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InterlockError(CONFIG, f"{folder} cannot be signed: {reason}.") from None
    print(f"{signature_file}: signed by {key_id(private.public_key())}")
    output.print_note("Nodes with the public key under drivers.trust will use this driver.")


def verify(
    drivers: DriversArgument = None,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key", metavar="PEM", help="A public key to trust, in addition to drivers.trust."
        ),
    ] = None,
    json: Json = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Show who signed drivers and whether they changed since. Exit code 1 unless all are valid.

    \b
    Examples:
      interlock drivers verify
      interlock drivers verify filesystem-mcp --key release.pub
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.manifests.signatures import SignatureProblem
    from interlock.manifests.signatures import verify as verified

    project = open_project(config)
    trusted = _trusted_keys(project, key or [])
    rows: list[dict[str, str | None]] = []
    for id in drivers or project.ids():
        try:
            rows.append({"driver": id, "signed_by": verified(project.folder_of(id), trusted)})
        except SignatureProblem as problem:
            rows.append({"driver": id, "signed_by": None, "problem": str(problem)})
    invalid = [row for row in rows if row["signed_by"] is None]
    if json:
        output.print_json(rows)
    else:
        width = max((len(str(row["driver"])) for row in rows), default=0)
        for row in rows:
            result = f"signed by {row['signed_by']}" if row not in invalid else row["problem"]
            print(f"{row['driver']:<{width}}  {output.sanitize(str(result))}")
        if not rows:
            output.print_note("No drivers here. Create one: `interlock drivers new`")
    if invalid:
        raise typer.Exit(output.FAILED)


def _trusted_keys(project: DriverProject, options: list[Path]) -> list[Ed25519PublicKey]:
    """Return the trusted keys. Raises InterlockError."""
    from interlock.errors import CONFIG, InterlockError
    from interlock.manifests.signatures import SignatureProblem, read_public_key

    configured = [project.base_dir / Path(path).expanduser() for path in project.settings.trust]
    keys = []
    for path in [*configured, *options]:
        try:
            keys.append(read_public_key(path))
        except SignatureProblem as problem:
            raise InterlockError(CONFIG, str(problem)) from None
    if not keys:
        raise InterlockError(
            CONFIG,
            "no trusted key. Add one to drivers.trust in interlock.yaml, or use --key.",
        )
    return keys
