"""A continual run that resumes after a crash: runner, checkpoints, streams, watchdog, metrics."""
