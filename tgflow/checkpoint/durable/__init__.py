"""Crash-safe files: atomic replacement, append-only files, and the event log."""
