"""Measurements, each with a command of its own; bench/README.md has the numbers."""
