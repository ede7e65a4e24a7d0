"""The public walkthroughs, step by step: `make demo` shows them, tests/cluster asserts them."""
