"""Merge partitions of rows into one event sequence: admission, reordering, log, accounting."""
