"""Faces translate: in from a wire, out to it. They decide nothing."""
