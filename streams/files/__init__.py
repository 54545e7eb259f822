"""Files and tables as partitions of rows: one decoder a format."""
