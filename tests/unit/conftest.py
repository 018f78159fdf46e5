"""What all unit tests share."""

from __future__ import annotations

from hypothesis import settings

# Two busy cores: the time of one example says nothing about the code.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
