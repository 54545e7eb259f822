"""One order for events that come in several partitions and not quite in time."""
