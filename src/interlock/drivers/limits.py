"""Timeout, cost and retries of a contract call.

The contract, the driver and the driver's entry can each set them. Timeouts are ceilings: the
smallest applies. For cost and retries the more specific setting applies. Only the node retries: a
driver marks an error as retryable, and a call that may have changed something is repeated only if
it is idempotent.
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
    """Return the smallest timeout of the contract, the driver, the entry and the connection, in
    ms."""
    return min(_declared_ms(contract, driver, entry), driver.connection.timeout_ms)


def override_warnings(
    contract: ToolContract, driver: DriverManifest, entry: ImplementedContract
) -> list[str]:
    """Return a warning for each override that has no effect or an unexpected effect."""
    warnings = []
    for where, override_ms in (
        (f"driver {driver.id}", driver.timeout_override_ms),
        (f"driver {driver.id}, entry of {contract.id}", entry.timeout_override_ms),
    ):
        if override_ms is not None and override_ms > contract.timeout_ms:
            warnings.append(
                f"{where}: timeout_override_ms {override_ms} exceeds timeout_ms of the contract; "
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
    """Return the cost of a call: set by the entry, else by the driver, else the contract's cost
    class."""
    specific, general = entry.cost or Cost(), driver.cost or Cost()
    priced = specific if specific.units_per_call is not None else general
    return Cost(
        specific.cost_class or general.cost_class or contract.cost_class,
        priced.units_per_call,
        priced.currency,
    )


def effective_retry(
    contract: ToolContract, driver: DriverManifest, entry: ImplementedContract
) -> Retry:
    """Return the retry policy of a call: set by the entry, else by the driver, else by the
    contract."""
    return entry.retry or driver.retry or contract.retry or _ONCE


def is_repeatable(contract: ToolContract, level: EffectLevel = EffectLevel.READ_ONLY) -> bool:
    """Return whether a call that may have been executed can be repeated safely.

    Args:
        level: the effect that the serving tools report, at least.
    """
    if contract.risk_level >= 3 or level is EffectLevel.IRREVERSIBLE:
        return False
    changes = bool(contract.mutates) or level is not EffectLevel.READ_ONLY
    return contract.idempotent or not changes


class CallAttempts:
    """A counter of the attempts of one call. After each failure it decides whether and when to
    retry."""

    __slots__ = ("_count", "_repeatable", "_retry")

    def __init__(
        self,
        contract: ToolContract,
        driver: DriverManifest,
        entry: ImplementedContract,
        level: EffectLevel = EffectLevel.READ_ONLY,
    ) -> None:
        self._retry = effective_retry(contract, driver, entry)
        self._repeatable = is_repeatable(contract, level)
        self._count = 1

    @property
    def count(self) -> int:
        """The number of attempts, including the current one."""
        return self._count

    def next_delay(self, error: InterlockError, *, executed: bool = True) -> float | None:
        """Return the delay before the next attempt in seconds, or None if there is no further
        attempt.

        Args:
            executed: the tool may have been called. False means that it certainly was not, so a
                repetition cannot execute it twice.
        """
        if not error.retryable or self._count >= self._retry.max_attempts:
            return None
        if executed and not self._repeatable:
            return None
        pause: float = self._retry.initial_ms
        if self._retry.backoff == "exponential":
            pause = exponential_delay(self._count - 1, pause, MAX_PAUSE_MS)
        self._count += 1
        return min(pause, MAX_PAUSE_MS) / 1000


def _repeats(contract: ToolContract, driver: DriverManifest, entry: ImplementedContract) -> bool:
    return effective_retry(contract, driver, entry).max_attempts > 1


def _declared_ms(contract: ToolContract, driver: DriverManifest, entry: ImplementedContract) -> int:
    timeouts = (contract.timeout_ms, driver.timeout_override_ms, entry.timeout_override_ms)
    return min(timeout for timeout in timeouts if timeout is not None)
