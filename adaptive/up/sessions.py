"""Processes by session, read from /proc.

A role is the leader of its own session. What it starts stays in that session even where it changes its
process group (as Ray's actors do) or loses its parent, so a role has ended when its session is empty.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.05
_SESSION_FIELD: Final = 3
"""Index of the session behind the command name in /proc/PID/stat: state, ppid, pgrp, session."""


def members(session: int) -> set[int]:
    """Ids of the living processes of a session (zombies are dead)."""
    found = set()
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # ended meanwhile
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[_SESSION_FIELD]) == session and fields[0] not in {"Z", "X"}:
                    found.add(int(entry.name))
    return found


def kill(session: int, timeout: float) -> bool:
    """Kill every process of a session, also those that are being started meanwhile.

    Returns:
        Whether the session was empty within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while living := members(session):
        if time.monotonic() > deadline:
            return False
        for process in living:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return True


def wait(session: int, timeout: float) -> bool:
    """Wait until a session is empty; False if it is not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while members(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
