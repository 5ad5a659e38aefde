"""Pure protocol code: bytes in, typed messages out. No asyncio, sockets, clock or logging."""
