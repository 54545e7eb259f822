"""What tests share: made data, references, devices, crash states, and runs to compare."""
