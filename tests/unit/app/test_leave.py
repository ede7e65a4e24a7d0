"""The last resort of a stop: in a process of its own, which it ends."""

from __future__ import annotations

import subprocess
import sys

_HUNG = """
import threading
from apportion import app, log
log.setup("INFO", "text")
threading.Thread(target=threading.Event().wait, name="hung").start()
app._leave()
"""


def test_a_thread_that_never_ends_is_named_and_holds_up_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HUNG], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "not stopped in time; ended all the same threads=hung" in done.stderr
