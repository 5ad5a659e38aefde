"""Ways to be known beside a token of the config: signed tokens, API tokens, opaque tokens that
another server is asked about, and client certificates. Nothing here waits or uses the network."""
