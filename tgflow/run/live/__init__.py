"""A continual run that goes on after anything: session, loop, checkpoints, signals, health."""
