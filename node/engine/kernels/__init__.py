"""Functions that are compiled for the processor a node is on; see decisions 199 and 201."""
