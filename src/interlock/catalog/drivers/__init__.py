"""Which driver serves a contract, and how the two are translated. Pure: no I/O, no own clock.

A contract (TOOL.md) is what callers see; a driver (DRIVER.md) is one way to serve it. This room
checks that the two fit, chooses between drivers, makes a tool's arguments of a contract's inputs
and the contract's value of a tool's result, and says why. It starts and connects nothing.
"""
