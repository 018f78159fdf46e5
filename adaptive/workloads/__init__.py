"""Tenant workloads of demo and benchmarks: `load("tools")` gives traffic and never-trained probe prompts."""

from __future__ import annotations

from adaptive.workloads.catalogue import WORKLOADS, UnknownWorkloadError, load
from adaptive.workloads.prompt import Message, Prompt, Workload

__all__ = ["WORKLOADS", "Message", "Prompt", "UnknownWorkloadError", "Workload", "load"]
