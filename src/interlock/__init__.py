"""Interlock: the control plane between AI agents and everything they can act on."""

__version__ = "0.1.0"
