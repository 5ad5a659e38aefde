"""Decisions of the resolver, kept for as long as nothing changes that they depend on.

A decision depends on the contract, the workspace's policy and region, the pin, those inputs that
some driver does not take, and what is known of the drivers. The last of these is not in the key:
whoever changes a driver or its standing calls `invalidate`. What time alone changes is seen here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from interlock.drivers.resolver import Candidate, Decision, Machine, Workspace, route
from interlock.manifests.model import ToolContract
from interlock.primitives.bounded_dict import BoundedDict

MOST_KEPT: Final = 4096

_Key = tuple[str, str, str | None, str | None, frozenset[str]]


class ResolverCache:
    """Asks the resolver once for each question."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._kept: BoundedDict[_Key, Decision] = BoundedDict(MOST_KEPT)
        self._workspace: Workspace | None = None
        self._fingerprint = ""

    def decide(
        self,
        contract: ToolContract,
        candidates: Sequence[Candidate],
        inputs: Collection[str],
        *,
        workspace: Workspace,
        pinned: str | None = None,
        now: float,
    ) -> Decision:
        """What `route` says, or said."""
        if workspace is not self._workspace:
            self._workspace = workspace
            self._fingerprint = fingerprint(workspace)
        contested = frozenset(
            name for one in candidates for name in one.entry.drop_inputs if name in inputs
        )
        key = (contract.key, self._fingerprint, pinned, workspace.region, contested)
        kept = self._kept.get(key)
        if kept is not None and (kept.until is None or now < kept.until):
            return kept
        decision = route(
            contract,
            candidates,
            inputs,
            workspace=workspace,
            machine=self._machine,
            pinned=pinned,
            now=now,
        )
        # With a wait in it, it is true for this moment only.
        if decision.retry_after_ms is None:
            self._kept[key] = decision
        return decision

    def invalidate(self, contract: str | None = None) -> None:
        """A driver came, went or changed its standing: ask again. `contract`: only about this one
        (id@major)."""
        if contract is None:
            self._kept.clear()
            return
        for key in [one for one in self._kept if one[0] == contract]:
            del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)


def fingerprint(workspace: Workspace) -> str:
    """The same for two workspaces with the same policy."""
    plain = msgspec.json.encode(workspace, order="deterministic")
    return blake2b(plain, digest_size=16).hexdigest()
