"""What a run says, by the ids and times of its stream: in Python, and over HTTP."""
