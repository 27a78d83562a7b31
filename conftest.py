"""For all tests of the repository."""

import signal

from hypothesis import HealthCheck, settings

# No test is judged by the clock: on a busy machine any example may take long.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A job that is started in the background has Ctrl-C ignored, and so have all processes that it starts. Tests that
# interrupt a process mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
