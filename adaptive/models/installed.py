"""Finds data files inside installed distributions without importing their packages."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from adaptive.models.errors import PackageMissingError


def find_data_file(distribution: str, file_name: str, install_command: str) -> Path:
    """Path of a data file that an installed distribution ships.

    Args:
        distribution: Name of the distribution as in the registry.
        file_name: The file's path inside it, or the end of that path (whole components).
        install_command: What installs the distribution; quoted in the error.

    Raises:
        PackageMissingError: The distribution is not installed, or its installation lacks the file.
    """
    try:
        files = metadata.distribution(distribution).files or []
    except metadata.PackageNotFoundError:
        raise PackageMissingError(
            f"package {distribution!r} is not installed; install it with: {install_command}"
        ) from None
    wanted = Path(file_name).parts
    for file in files:
        if file.parts[-len(wanted) :] == wanted:
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise PackageMissingError(
        f"package {distribution!r} is installed but lacks {file_name!r}; "
        f"reinstall it with: {install_command} --force-reinstall"
    )
