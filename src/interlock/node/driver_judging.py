"""Which contracts of drivers break what was accepted of them, and what becomes of the drivers that
serve one: they say so, and do not serve it where the config holds what breaks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from interlock.config import Config
from interlock.manifests.tool import ToolContract
from interlock.node.contracts_shown import ToolChange, classes
from interlock.node.driver_contracts import AcceptedContracts, Broken
from interlock.pipeline.audit import Audit
from interlock.upstreams.drivers.contract_upstream import Served
from interlock.upstreams.drivers.driver import Driver


class DriverJudging:
    """What is known to break."""

    def __init__(
        self, config: Config, *, environ: Mapping[str, str], base_dir: Path, audit: Audit
    ) -> None:
        self.config = config
        """The one of now. Set by whoever changes it."""
        self._audit = audit
        self._accepted = AcceptedContracts.of(config, environ, base_dir)
        self._mark: object = None
        self._broken: dict[str, Broken] = {}
        """Contracts that are not what was accepted, by key."""

    @property
    def _holds(self) -> bool:
        return self.config.contracts.on_break == "hold"

    def judge(self, served: Iterable[ToolContract]) -> None:
        """Hold these against what was accepted, and accept what breaks nobody."""
        fresh: list[Broken] = []
        self._broken = {}
        if self.config.contracts.watch:
            self._broken, fresh = self._accepted.take(served)
        self._mark = self._accepted.mark()
        for one in fresh:
            found = " ".join(classes(one.changes))
            self._audit.record_change("contracts", one.contract.id, "breaking", found)

    def is_out_of_date(self) -> bool:
        """Somebody else has accepted something since."""
        return self._accepted.mark() != self._mark

    def mark_of(self, contracts: Collection[str]) -> tuple[tuple[str, ...], bool]:
        """By what it is seen that a driver of these contracts, given by key, is judged otherwise:
        what breaks, and whether that is held."""
        keys = sorted(self._broken.keys() & set(contracts))
        broken = tuple(self._broken[key].sentence for key in keys)
        return broken, bool(broken) and self._holds

    def tell(self, driver: Driver) -> None:
        """Have a new driver say what breaks, and not serve it where that is held."""
        for key in driver.bindings.keys() & self._broken.keys():
            sentence = self._broken[key].sentence
            driver.warn(sentence)
            if self._holds:
                driver.bindings[key].wrong += (sentence,)

    def sentences(self) -> dict[str, str]:
        """By the keys of contracts."""
        return {key: one.sentence for key, one in self._broken.items()}

    def shown(self, served: Mapping[str, Served]) -> list[ToolChange]:
        """What broke and is served, as an operator sees it."""
        return [
            one.shown(
                held=self._holds, drivers=[driver.manifest.id for driver in served[key].drivers]
            )
            for key, one in self._broken.items()
            if key in served
        ]
