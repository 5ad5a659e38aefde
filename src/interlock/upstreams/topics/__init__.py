"""Participants of topics as upstreams: their tools stand in the catalog like any other server's."""
