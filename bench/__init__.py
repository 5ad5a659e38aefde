"""Benchmarks: the node against peers and limits, every figure from one interleaved run."""
