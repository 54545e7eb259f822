"""From partitions of rows to one sequence of events: admit, reorder, log, account."""
