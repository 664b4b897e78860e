"""Processes that a script has started. Standard library only."""
import signal
import subprocess


def end(started):
    """SIGTERM to all of them, the last one first; SIGKILL to those that have not ended after 20
    s."""
    for p in reversed(started):
        p.send_signal(signal.SIGTERM)
    for p in started:
        try:
            p.wait(timeout=20)
        except subprocess.TimeoutExpired:
            p.kill()
