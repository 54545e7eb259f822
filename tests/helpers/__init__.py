"""Shared test helpers: generated data, references, devices, crash states, run comparison."""
