"""Time division of a GPU: who may run when, in files that the front libraries read."""
