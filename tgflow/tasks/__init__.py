"""What is learned and measured of a stream beside which events come: its labels.

A task is targets (which event has which label, and from when it may be seen), a decoder, a loss,
figures and baselines. Trainers know `tgflow.train.learning_task` alone.
"""
