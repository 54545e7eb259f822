"""Units, text, settings as annotated fields, lazy names, and the binding of the core."""
