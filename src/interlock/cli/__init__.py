"""The command line of Interlock.

Each command has a file. The package `terminal` has what they share: `config_source` finds the
config, `node_client` connects to a running or a temporary node, `output` prints and defines the
exit codes. A command imports slow modules only when it needs them: `interlock version` must not
wait for uvicorn.
"""
