"""Presentation of a run: the report page, the live display, tables and texts."""
