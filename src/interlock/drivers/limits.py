"""How long a call of a contract may take, what it costs, and whether it is tried again.

The contract, the driver and the driver's entry each have a word. Timeouts are ceilings, so the
smallest counts. For cost and retries the more specific word counts. Only the node tries again: a
driver says that an error is worth it, and what may have changed something is repeated only where
doing it twice is doing it once.
"""

from __future__ import annotations

from typing import Final

from interlock.core.catalog.effects import EffectLevel
from interlock.errors import InterlockError
from interlock.manifests.model import Cost, DriverManifest, ImplementedContract, Retry, ToolContract
from interlock.primitives.backoff import exponential_delay

MAX_PAUSE_MS: Final = 60_000
_ONCE: Final = Retry()


def effective_timeout_ms(
    contract: ToolContract, driver: DriverManifest, entry: ImplementedContract
) -> int:
    """The smallest of what the contract, the driver, the entry and the connection allow."""
    return min(_declared_ms(contract, driver, entry), driver.connection.timeout_ms)


def override_warnings(
    contract: ToolContract, driver: DriverManifest, entry: ImplementedContract
) -> list[str]:
    """Overrides that do not do what their author may expect."""
    warnings = []
    for where, said in (
        (f"driver {driver.id}", driver.timeout_override_ms),
        (f"driver {driver.id}, entry of {contract.id}", entry.timeout_override_ms),
    ):
        if said is not None and said > contract.timeout_ms:
            warnings.append(
                f"{where}: timeout_override_ms {said} is more than the contract allows; "
                f"{contract.timeout_ms} is used."
            )
    declared = _declared_ms(contract, driver, entry)
    if driver.connection.timeout_ms < declared:
        warnings.append(
            f"driver {driver.id}: {contract.id} may take {declared} ms, but "
            f"connection_options.timeout_ms ends its calls after {driver.connection.timeout_ms} ms."
        )
    if _repeats(contract, driver, entry) and contract.mutates and not contract.idempotent:
        warnings.append(
            f"driver {driver.id}: {contract.id} changes something and is not idempotent, so it is "
            "never tried again."
        )
    return warnings


def effective_cost(
    contract: ToolContract, driver: DriverManifest, entry: ImplementedContract
) -> Cost:
    """What a call costs: the entry's word, else the driver's, else the contract's class."""
    own, general = entry.cost or Cost(), driver.cost or Cost()
    priced = own if own.units_per_call is not None else general
    return Cost(
        own.cost_class or general.cost_class or contract.cost_class,
        priced.units_per_call,
        priced.currency,
    )


def effective_retry(
    contract: ToolContract, driver: DriverManifest, entry: ImplementedContract
) -> Retry:
    """How often a call is tried: the entry's word, else the driver's, else the contract's."""
    return entry.retry or driver.retry or contract.retry or _ONCE


def is_repeatable(contract: ToolContract, level: EffectLevel = EffectLevel.READ_ONLY) -> bool:
    """Whether a call that may have been executed can be made once more without harm. `level`: what
    it does at least, by those who serve it."""
    if contract.risk_level >= 3 or level is EffectLevel.IRREVERSIBLE:
        return False
    changes = bool(contract.mutates) or level is not EffectLevel.READ_ONLY
    return contract.idempotent or not changes


class CallAttempts:
    """The tries of one call. Asked after each failure whether there is another, and when."""

    __slots__ = ("_made", "_repeatable", "_retry")

    def __init__(
        self,
        contract: ToolContract,
        driver: DriverManifest,
        entry: ImplementedContract,
        level: EffectLevel = EffectLevel.READ_ONLY,
    ) -> None:
        self._retry = effective_retry(contract, driver, entry)
        self._repeatable = is_repeatable(contract, level)
        self._made = 1

    @property
    def made(self) -> int:
        """How many there were, with the one that is under way."""
        return self._made

    def again(self, error: InterlockError, *, executed: bool = True) -> float | None:
        """How many seconds to wait before the next try. None: there is none.

        `executed`: the tool may have been called. Where it certainly was not, nothing can happen
        twice.
        """
        if not error.retryable or self._made >= self._retry.max_attempts:
            return None
        if executed and not self._repeatable:
            return None
        pause: float = self._retry.initial_ms
        if self._retry.backoff == "exponential":
            pause = exponential_delay(self._made - 1, pause, MAX_PAUSE_MS)
        self._made += 1
        return min(pause, MAX_PAUSE_MS) / 1000


def _repeats(contract: ToolContract, driver: DriverManifest, entry: ImplementedContract) -> bool:
    return effective_retry(contract, driver, entry).max_attempts > 1


def _declared_ms(contract: ToolContract, driver: DriverManifest, entry: ImplementedContract) -> int:
    said = (contract.timeout_ms, driver.timeout_override_ms, entry.timeout_override_ms)
    return min(timeout for timeout in said if timeout is not None)
