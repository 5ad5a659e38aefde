"""The choice of a key: which of the user's keys can sign for a pending call.

The choice reads the files of the node, so it works on the node's own machine only. The operators
of a node on another machine are not known here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.errors import CONFIG, PROOF_INVALID, InterlockError
from interlock.terminal import operator_key

if TYPE_CHECKING:
    from interlock.terminal.approvals_client import PendingApproval
    from interlock.terminal.node_discovery import NodeSelector, TargetNode
    from interlock.trust.approvals.proofs import Anchor
    from interlock.trust.operators.store import OperatorStore


def choose_key(
    key_path: Path | None, approval: PendingApproval, target: TargetNode, *, is_local: bool
) -> Path:
    """Choose the key to sign with: the named key, else the only key that can approve this call.

    Args:
        is_local: True if the files of the node are on this machine.

    Raises InterlockError.
    """
    user_keys = list_user_keys()
    if key_path is not None or os.environ.get("INTERLOCK_KEY") or not is_local or not user_keys:
        return operator_key.choose_key(key_path, target.selector)
    active_keys = list(_active_keys(target))
    callers = (approval.caller.get("name", ""), approval.caller.get("above", ""))
    usable: list[Path] = []
    reasons: list[str] = []
    for path, id in user_keys.items():
        anchors = [anchor for key_id, anchor in active_keys if key_id == id]
        reason = _rejection_reason(path, anchors, approval.tool, callers, target.selector)
        if reason:
            reasons.append(reason)
        else:
            usable.append(path)
    if len(usable) == 1:
        return usable[0]
    if usable:
        names = ", ".join(path.stem for path in usable)
        raise InterlockError(
            PROOF_INVALID,
            f"Several of your keys can approve this call ({names}). Choose one: --key NAME",
        )
    raise InterlockError(
        PROOF_INVALID, "None of your keys can approve this call:\n  " + "\n  ".join(reasons)
    )


def list_user_keys() -> dict[Path, str]:
    """Return the user's private keys, each with its thumbprint. Empty: it cannot be read."""
    folder = operator_key.keys_dir()
    paths = sorted(folder.glob("*.pem")) if folder.is_dir() else []
    return {path: read_thumbprint(path) for path in paths}


def read_thumbprint(private: Path) -> str:
    """Return the thumbprint of a key, or nothing if it cannot be read.

    The public file is read first, because the private file can have a passphrase.
    """
    from interlock.trust.operators.operators import enrol_key
    from interlock.trust.operators.store import Invitation

    for path in (private.with_suffix(".pub"), private):
        try:
            return enrol_key(path.read_bytes(), Invitation(private.stem)).id
        except (OSError, InterlockError):
            continue
    return ""


def enrolment_command(private: Path, selector: NodeSelector) -> str:
    """Return the command that enrols an existing key."""
    import shlex

    arguments = ["interlock", "keys", "enrol", private.stem]
    arguments += ["--public", str(private.with_suffix(".pub"))]
    return shlex.join(arguments) + selector.options


def open_operator_store(target: TargetNode) -> OperatorStore:
    """Open the store with the operators of the target node."""
    from interlock.trust.operators.operators import operators_of, operators_path
    from interlock.trust.operators.store import OperatorStore

    return OperatorStore(
        operators_path(target.config, os.environ, target.base_dir),
        roots=lambda: operators_of(_config_anchors(target)),
    )


def list_enrolling_keys(target: TargetNode, store: OperatorStore) -> list[Path]:
    """Return the user's keys that can confirm an enrolment or a removal."""
    operators = store.chain().operators or store.roots()
    ids = {operator.id for operator in operators}
    return [path for path, id in list_user_keys().items() if id in ids]


def choose_enrolled_key(key_path: Path | None, target: TargetNode) -> Path:
    """Choose the key to sign with: the named key, else the only key that is enrolled with the
    target node, else the only key. Raises InterlockError."""
    user_keys = list_user_keys()
    if key_path is not None or os.environ.get("INTERLOCK_KEY") or len(user_keys) < 2:
        return operator_key.choose_key(key_path, target.selector)
    ids = {id for id, _ in _active_keys(target)}
    enrolled_keys = [path for path, id in user_keys.items() if id in ids]
    if len(enrolled_keys) == 1:
        return enrolled_keys[0]
    if enrolled_keys:
        names = ", ".join(path.stem for path in enrolled_keys)
        raise InterlockError(
            CONFIG, f"Several of your keys are enrolled ({names}). Choose one: --key NAME"
        )
    return operator_key.choose_key(None, target.selector)


def _config_anchors(target: TargetNode) -> Iterator[Anchor]:
    """Yield the operators whose keys are in the config."""
    from interlock.trust.approvals.proofs import OPERATOR, read_anchor

    for config in target.config.approvals.anchors:
        if config.kind != OPERATOR or config.key is None:
            continue
        try:
            yield read_anchor(config, environ=os.environ, base_dir=target.base_dir)
        except InterlockError:
            # The node still uses the previous value. Reporting it is the task of `check`.
            continue


def _active_keys(target: TargetNode) -> Iterator[tuple[str, Anchor]]:
    """Yield the thumbprint of every key whose proofs are accepted, and what it can approve."""
    from interlock.trust.approvals.proofs import Anchor
    from interlock.trust.operators.operators import thumbprint

    if target.config.approvals.enrolled:
        for operator in open_operator_store(target).all():
            if operator.kind == "key":
                yield (
                    operator.id,
                    Anchor(operator.name, tools=operator.tools, caller=operator.caller),
                )
    for anchor in _config_anchors(target):
        yield thumbprint(anchor.key), anchor


def _rejection_reason(
    path: Path, anchors: list[Anchor], tool: str, callers: tuple[str, ...], selector: NodeSelector
) -> str:
    """Return why this key cannot approve the call. Empty: it can."""
    if not anchors:
        return f"{path.stem} is not enrolled with this node: {enrolment_command(path, selector)}"
    tool_anchors = [anchor for anchor in anchors if anchor.may_approve(tool)]
    if not tool_anchors:
        return f"{path.stem} is limited to other tools: {', '.join(anchors[0].tools)}"
    if all(anchor.is_caller(*callers) for anchor in tool_anchors):
        return f"{path.stem} is the key of the caller, and callers cannot approve their own calls"
    return ""
