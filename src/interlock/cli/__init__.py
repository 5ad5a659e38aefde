"""The command line: what a person or a script says to Interlock.

A file per command, and a few shared rooms: `where` finds the config, `reach` reaches a running
node or starts one for the moment, `say` prints and knows the exit codes. Whatever is slow to
import is imported by the command that needs it: `interlock version` must not wait for uvicorn.
"""
