"""Row schema, validation, and events as columns."""
