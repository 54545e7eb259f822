"""What survives a crash: files written so that they are whole or absent, and the log of events."""
