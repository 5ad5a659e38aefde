"""AQL as a stage of the pipeline: from an operation to a call, and from an outcome to an answer."""
