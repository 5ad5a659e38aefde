"""Drivers in Python: what a `driver.py` imports."""

from interlock.catalog.drivers.faults import ToolFault
from interlock.manifests.definitions import define_driver
from interlock.manifests.hooking import HookArguments, HookResult

__all__ = ["HookArguments", "HookResult", "ToolFault", "define_driver"]
