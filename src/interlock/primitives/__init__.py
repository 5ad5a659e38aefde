"""Building blocks that every package may use: rate limits, backoff, durations, timestamps, bounded
dictionaries. Pure: no clock, chance, file, log or loop. The time and the jitter are given."""
