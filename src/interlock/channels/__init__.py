"""Channels: complete messages in both directions between two nodes. The content of messages is not
known here."""
