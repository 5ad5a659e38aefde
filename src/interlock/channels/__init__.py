"""Channels: whole messages both ways between two nodes, whoever dialled. What they mean is not
known here."""
