"""Turns a quantised GGUF into a directory that vLLM serves: bfloat16 safetensors, config and tokenizer."""

from __future__ import annotations

import importlib
import io
from contextlib import contextmanager, redirect_stderr
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from adaptive.models.errors import PackageMissingError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TOOLS = ("torch", "transformers", "gguf", "accelerate", "safetensors")


class Converter(Protocol):
    """Writes a served model made from `source` into the existing, empty `directory`."""

    def __call__(self, source: Path, directory: Path) -> dict[str, str]:
        """Convert and return the versions of the tools that did it."""
        ...


@contextmanager
def _quiet_progress() -> Iterator[None]:
    """Keep transformers' own progress bars out of ours; its GGUF reader's bar has no switch but stderr."""
    from transformers.utils import logging  # noqa: PLC0415  (the base install has no transformers)

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def convert_gguf(source: Path, directory: Path) -> dict[str, str]:
    """Dequantise `source` in float32, round to bfloat16 and save it with its tokenizer and chat template.

    Dequantisation is element-wise, so the weights do not depend on the machine.

    Raises:
        PackageMissingError: transformers or one of its GGUF helpers is not installed.
    """
    for tool in _TOOLS:
        try:
            importlib.import_module(tool)
        except ImportError as error:
            raise PackageMissingError(
                f"converting a model needs {tool!r}, which cannot be imported ({error}); "
                "install the serving tier with: make install"
            ) from error
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  (absent from the base install)
    from transformers.utils.quantization_config import GgufConfig  # noqa: PLC0415  (same)

    folder, file = str(source.parent), source.name
    with _quiet_progress():
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=file,
            dtype="float32",
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
        ).bfloat16()
        if hasattr(model.config, "quantization_config"):
            # The saved weights are plain; a loader that saw this would look for a GGUF.
            del model.config.quantization_config
        model.save_pretrained(directory)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, local_files_only=True)
        # A GGUF states no limit for the tokenizer, and transformers would save 1e30.
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(directory)
    for path in directory.iterdir():
        path.chmod(0o644)  # safetensors writes 0600; the engine may run as another user
    return {tool: metadata.version(tool) for tool in _TOOLS}
