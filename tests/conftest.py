"""What every test has in common."""

from hypothesis import settings

# A limit of time for an example measures the machine, and fails on a busy one.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
