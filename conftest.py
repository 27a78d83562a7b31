"""For all tests of the repository."""

import signal

# A job that is started in the background has Ctrl-C ignored, and so have all processes that it starts. Tests that
# interrupt a process mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
