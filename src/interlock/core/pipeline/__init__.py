"""The one way a call goes: `pipeline.py` has the order, each other file one stage."""
