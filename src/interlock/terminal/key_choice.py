"""Which of this user's keys count for a call that waits, as the files of the node say.

Read only, and only on the node's own machine: of a node elsewhere nobody here knows who is
enrolled with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.errors import PROOF_INVALID, InterlockError
from interlock.terminal import operator_key

if TYPE_CHECKING:
    from interlock.terminal.approvals_client import PendingApproval
    from interlock.terminal.node_discovery import NodeSelector, TargetNode
    from interlock.trust.approvals.proofs import Anchor
    from interlock.trust.operators.store import OperatorStore


def choose_key(given: Path | None, one: PendingApproval, target: TargetNode, *, here: bool) -> Path:
    """The key to sign with: the one that is named, else the only one that counts for this call.

    `here`: the node's files are on this machine. Raises InterlockError.
    """
    mine = list_user_keys()
    if given is not None or os.environ.get("INTERLOCK_KEY") or not here or not mine:
        return operator_key.choose_key(given)
    known = list(_counting(target))
    callers = (one.caller.get("name", ""), one.caller.get("above", ""))
    fitting: list[Path] = []
    why: list[str] = []
    for path, id in mine.items():
        anchors = [anchor for each, anchor in known if each == id]
        refusal = _refusal(path, anchors, one.tool, callers, target.selector)
        if refusal:
            why.append(refusal)
        else:
            fitting.append(path)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(path.stem for path in fitting)
        raise InterlockError(
            PROOF_INVALID, f"several of your keys count here ({names}): choose with --key NAME."
        )
    raise InterlockError(
        PROOF_INVALID, "none of your keys can confirm this call:\n  " + "\n  ".join(why)
    )


def list_user_keys() -> dict[Path, str]:
    """This user's private keys, each with its thumbprint, or nothing where that is not known."""
    folder = operator_key.keys_dir()
    found = sorted(folder.glob("*.pem")) if folder.is_dir() else []
    return {path: read_thumbprint(path) for path in found}


def read_thumbprint(private: Path) -> str:
    """By the public file beside it: the private one may have a passphrase."""
    from interlock.trust.operators.operators import enrolled_key
    from interlock.trust.operators.store import Invitation

    for path in (private.with_suffix(".pub"), private):
        try:
            return enrolled_key(path.read_bytes(), Invitation(private.stem)).id
        except (OSError, InterlockError):
            continue
    return ""


def enrolment_command(private: Path, named: NodeSelector) -> str:
    """The command by which a key that is there is enrolled."""
    import shlex

    words = ["interlock", "keys", "enrol", private.stem]
    words += ["--public", str(private.with_suffix(".pub"))]
    return shlex.join(words) + named.options


def open_operator_store(target: TargetNode) -> OperatorStore:
    """Who may confirm calls of the node that is target."""
    from interlock.trust.operators.operators import operators_of, operators_path
    from interlock.trust.operators.store import OperatorStore

    return OperatorStore(
        operators_path(target.config, os.environ, target.base_dir),
        roots=lambda: operators_of(_configured(target)),
    )


def list_enrolling_keys(target: TargetNode, store: OperatorStore) -> list[Path]:
    """This user's keys that can confirm an enrolment or a removal."""
    counting = store.chain().operators or store.roots()
    ids = {one.id for one in counting}
    return [path for path, id in list_user_keys().items() if id in ids]


def choose_enrolled_key(given: Path | None, target: TargetNode) -> Path:
    """The key to sign with: the one that is named, else the only one that is enrolled with the node
    that is target, else the only one. Raises InterlockError."""
    mine = list_user_keys()
    if given is not None or os.environ.get("INTERLOCK_KEY") or len(mine) < 2:
        return operator_key.choose_key(given)
    ids = {id for id, _ in _counting(target)}
    fitting = [path for path, id in mine.items() if id in ids]
    return fitting[0] if len(fitting) == 1 else operator_key.choose_key(None)


def _configured(target: TargetNode) -> Iterator[Anchor]:
    """Operators whose keys the config names."""
    from interlock.trust.approvals.proofs import OPERATOR, read_anchor

    for config in target.config.approvals.anchors:
        if config.kind != OPERATOR or config.key is None:
            continue
        try:
            yield read_anchor(config, environ=os.environ, base_dir=target.base_dir)
        except InterlockError:
            # The node runs by what this was before; it is not ours to say.
            continue


def _counting(target: TargetNode) -> Iterator[tuple[str, Anchor]]:
    """Every key whose proofs count: its thumbprint, and what it may confirm."""
    from interlock.trust.approvals.proofs import Anchor
    from interlock.trust.operators.operators import thumbprint

    if target.config.approvals.enrolled:
        for one in open_operator_store(target).all():
            if one.kind == "key":
                yield one.id, Anchor(one.name, tools=one.tools, caller=one.caller)
    for anchor in _configured(target):
        yield thumbprint(anchor.key), anchor


def _refusal(
    path: Path, anchors: list[Anchor], tool: str, callers: tuple[str, ...], named: NodeSelector
) -> str:
    """Why this key confirms nothing here; empty when it does."""
    if not anchors:
        return f"{path.stem} is not enrolled with this node: {enrolment_command(path, named)}"
    able = [one for one in anchors if one.may_confirm(tool)]
    if not able:
        return f"{path.stem} is for other tools: {', '.join(anchors[0].tools)}"
    if all(one.is_caller(*callers) for one in able):
        return f"{path.stem} is the one who asked, and nobody confirms their own calls"
    return ""
