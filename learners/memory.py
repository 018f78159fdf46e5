"""How much memory a piece of work takes at its peak."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # Linux, proc(5): the peak resident size becomes the present one


class PeakMemory:
    """Watches from its making on: a GPU's allocations, or this process's resident memory on Linux."""

    def __init__(self, device: torch.device) -> None:
        self._device: Final = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:
            return  # the peak since the process began stands in

    def peak_bytes(self) -> int:
        """Most bytes held since; 0 where the system does not tell."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        try:
            lines = _STATUS.read_text().splitlines()
        except OSError:
            return 0
        found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(found[0]) << 10 if found else 0
