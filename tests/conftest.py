"""What every test has in common."""

import signal

from hypothesis import settings

# A limit of time for an example measures the machine, and fails on a busy one.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# Ctrl-C is tested also where a shell has started the tests in the background, which then ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
