"""What a run leaves behind and shows while it goes: directory, records, report, display."""
