"""Caches in front of tables: which rows are held, which make room."""
