"""What a row is: its schema, the check of every field, and events as columns."""
