"""Settings that every test shares."""

from hypothesis import settings

# The machine may be busy: how long an example takes says nothing about it.
settings.register_profile("tgflow", deadline=None, max_examples=60)
settings.load_profile("tgflow")
