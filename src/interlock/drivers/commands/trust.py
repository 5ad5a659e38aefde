"""`interlock drivers sign` and `verify`: vouch for a driver as it is, and see who did."""

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
            help="Your private key (Ed25519); a name is looked for where `interlock keys new` "
            "puts keys.",
        ),
    ],
    passphrase_file: Annotated[
        Path | None,
        typer.Option("--passphrase-file", metavar="FILE", help="Its first line is the passphrase."),
    ] = None,
    config: config_source.ConfigOption = None,
) -> None:
    """Sign a driver as it is now: a node that trusts the key uses it, until a file of it changes.

    What is signed are DRIVER.md, SECRETS.md, driver.py and server.json. The signature is written
    beside them, into DRIVER.sig. Contracts are not signed: they can be several drivers'.

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
        written = signed(folder, private)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InterlockError(CONFIG, f"{folder} cannot be signed: {reason}.") from None
    print(f"{written}: signed by {key_id(private.public_key())}")
    output.print_note("Nodes that have the public part of the key under drivers.trust will use it.")


def verify(
    drivers: DriversArgument = None,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key", metavar="PEM", help="A public key that is believed, besides drivers.trust."
        ),
    ] = None,
    json: Json = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Show by whom drivers are signed, and whether they changed since. Exit code 1 if not all are.

    \b
    Examples:
      interlock drivers verify
      interlock drivers verify filesystem-mcp --key release.pub
    """
    from interlock.drivers.commands.workspace import open_project
    from interlock.manifests.signatures import SignatureProblem
    from interlock.manifests.signatures import verify as verified

    project = open_project(config)
    trusted = _trusted(project, key or [])
    rows: list[dict[str, str | None]] = []
    for id in drivers or project.ids():
        try:
            rows.append({"driver": id, "signed_by": verified(project.folder_of(id), trusted)})
        except SignatureProblem as problem:
            rows.append({"driver": id, "signed_by": None, "problem": str(problem)})
    bad = [row for row in rows if row["signed_by"] is None]
    if json:
        output.print_json(rows)
    else:
        widest = max((len(str(row["driver"])) for row in rows), default=0)
        for row in rows:
            told = f"signed by {row['signed_by']}" if row not in bad else row["problem"]
            print(f"{row['driver']:<{widest}}  {output.sanitize(str(told))}")
        if not rows:
            output.print_note("there is no driver here.")
    if bad:
        raise typer.Exit(output.FAILED)


def _trusted(project: DriverProject, more: list[Path]) -> list[Ed25519PublicKey]:
    """The keys that are believed. Raises InterlockError."""
    from interlock.errors import CONFIG, InterlockError
    from interlock.manifests.signatures import SignatureProblem, read_public_key

    named = [project.base_dir / Path(path).expanduser() for path in project.settings.trust]
    found = []
    for path in [*named, *more]:
        try:
            found.append(read_public_key(path))
        except SignatureProblem as problem:
            raise InterlockError(CONFIG, str(problem)) from None
    if not found:
        raise InterlockError(
            CONFIG,
            "no key is believed here: name one under drivers.trust in interlock.yaml, or with "
            "--key.",
        )
    return found
