"""Why a model cannot be prepared; every message names the thing and the remedy."""

from __future__ import annotations


class ModelError(Exception):
    """Base of every error that `prepare` raises on purpose."""


class UnknownModelError(ModelError):
    """The name is not in the catalogue."""


class PackageMissingError(ModelError):
    """A distribution that ships the data, or one that the conversion needs, is not installed."""


class SourceCorruptError(ModelError):
    """The packaged source file is not the one the catalogue names."""


class DiskFullError(ModelError):
    """The file system cannot hold the converted model."""


class ConversionMismatchError(ModelError):
    """The converted weights differ from the ones that turbo and adapters were trained for."""
