"""Becomes a role's command after tying its life to the supervisor's.

Run as `python -m adaptive.up.child SUPERVISOR-PID COMMAND…`.
A supervisor that is killed outright can stop nobody, so the kernel sends this process SIGTERM when its parent
dies. The tie outlives the exec below. It is made here and not between fork and exec of the supervisor, where
Python code can deadlock in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, command: list[str]) -> None:
    """Tie this process to `parent` and become `command`; does not return."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the supervisor died before this role could start")
    os.execvp(command[0], command)  # noqa: S606  the supervisor chose the command


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
