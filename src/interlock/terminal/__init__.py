"""The common parts of commands: output, options, finding and reaching a node."""
