"""Several models in one pass over one stream, and what can be said of their differences."""
