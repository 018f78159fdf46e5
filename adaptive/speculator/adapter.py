"""A tenant's low-rank delta on turbo, its file format, and its merge into a plain checkpoint."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adaptive.speculator.config import SpeculatorConfig

FORMAT = "adaptive-adapter-1"
MODULES = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PATHS = {
    "q_proj": "midlayer.self_attn.q_proj.weight",
    "o_proj": "midlayer.self_attn.o_proj.weight",
    "gate_proj": "midlayer.mlp.gate_proj.weight",
    "up_proj": "midlayer.mlp.up_proj.weight",
    "down_proj": "midlayer.mlp.down_proj.weight",
}


class AdapterError(ValueError):
    """An adapter is unusable; the message names the tensor or field and the remedy."""


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Rank and scope of an adapter (q, o and MLP leave the drafter's KV cache the same for every tenant)."""

    rank: int = 32
    modules: tuple[str, ...] = MODULES

    def shapes(self, config: SpeculatorConfig) -> dict[str, tuple[int, int]]:
        """Shape of every tensor by name: A is [rank, in], B is [out, rank]."""
        hidden, heads = config.hidden_size, config.num_attention_heads * config.head_dim
        sizes = {
            "q_proj": (2 * hidden, heads),
            "o_proj": (heads, hidden),
            "gate_proj": (hidden, config.intermediate_size),
            "up_proj": (hidden, config.intermediate_size),
            "down_proj": (config.intermediate_size, hidden),
        }
        shapes: dict[str, tuple[int, int]] = {}
        for name in self.modules:
            fan_in, fan_out = sizes[name]
            shapes[f"{name}.A"] = (self.rank, fan_in)
            shapes[f"{name}.B"] = (fan_out, self.rank)
        return shapes


class LowRank(nn.Module):
    """One projection's delta B(A x); B starts at zero, so a fresh adapter is turbo."""

    def __init__(
        self, a_shape: tuple[int, int], b_shape: tuple[int, int], generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.randn(a_shape, generator=generator) / a_shape[1] ** 0.5)
        self.B = nn.Parameter(torch.zeros(b_shape))


class Adapter(nn.Module):
    """Low-rank deltas of the drafter's projections; the scale is folded in: delta(x) = w * B(A x)."""

    def __init__(
        self,
        config: AdapterConfig,
        speculator: SpeculatorConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        shapes = config.shapes(speculator)
        self.deltas = nn.ModuleDict(
            {name: LowRank(shapes[f"{name}.A"], shapes[f"{name}.B"], generator) for name in config.modules}
        )

    def delta(self, name: str, x: Tensor, weight: float | Tensor = 1.0) -> Tensor:
        """Delta of projection `name` for inputs [..., in]; returns [..., out] in x's dtype."""
        pair = cast("LowRank", self.deltas[name])
        return weight * ((x @ pair.A.to(x.dtype).T) @ pair.B.to(x.dtype).T)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors by file name ("q_proj.A", ...), detached."""
        return {name.removeprefix("deltas."): tensor.detach() for name, tensor in self.named_parameters()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors in (names and shapes as `tensors()` gives them)."""
        self.load_state_dict({f"deltas.{name}": tensor for name, tensor in tensors.items()})


@dataclasses.dataclass(frozen=True)
class AdapterMetadata:
    """What an adapter file says about itself; fingerprints bind it to one target and one turbo."""

    tenant: str
    version: int
    rank: int
    target_sha256: str
    turbo_sha256: str
    created_at: str


def save_adapter(path: Path, tensors: Mapping[str, Tensor], metadata: AdapterMetadata) -> None:
    """Write a safetensors file, through a temporary file beside it so that readers never see half of one."""
    strings = {name: str(value) for name, value in dataclasses.asdict(metadata).items()} | {"format": FORMAT}
    partial = path.with_name(path.name + ".partial")
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial, strings
    )
    partial.replace(path)


def load_adapter(
    path: Path, config: SpeculatorConfig, *, target_sha256: str | None = None, turbo_sha256: str | None = None
) -> tuple[dict[str, Tensor], AdapterMetadata]:
    """Read and check an adapter file.

    Raises:
        AdapterError: names the wrong file, field, tensor, shape, value or fingerprint, and the remedy.
    """
    try:
        with safe_open(path, framework="pt") as file:
            strings = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # safe_open is no mapping
    except FileNotFoundError as error:
        raise AdapterError(f"{path} does not exist; publish the version again") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise AdapterError(
            f"{path} is truncated or not a safetensors file ({error}); copy it again from the registry"
        ) from error
    metadata = _metadata(path, strings)
    for field, expected in (("target_sha256", target_sha256), ("turbo_sha256", turbo_sha256)):
        found = getattr(metadata, field)
        if expected is not None and found != expected:
            raise AdapterError(
                f"{path}: {field} is {found[:12]}, this engine serves {expected[:12]}; "
                f"retrain the adapter on it"
            )
    check_tensors(tensors, AdapterConfig(rank=metadata.rank), config, str(path))
    return tensors, metadata


def check_tensors(
    tensors: Mapping[str, Tensor], adapter: AdapterConfig, config: SpeculatorConfig, origin: str
) -> None:
    """AdapterError unless names, shapes and finiteness are right."""
    shapes = adapter.shapes(config)
    if missing := sorted(shapes.keys() - tensors.keys()):
        raise AdapterError(f"{origin}: tensor {missing[0]} is missing; export the adapter again")
    if extra := sorted(tensors.keys() - shapes.keys()):
        raise AdapterError(f"{origin}: tensor {extra[0]} is not part of an adapter; export the adapter again")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise AdapterError(
                f"{origin}: tensor {name} has shape {tuple(tensors[name].shape)}, expected {shape}; "
                f"train the adapter for this turbo"
            )
        if not tensors[name].is_floating_point() or not bool(torch.isfinite(tensors[name]).all()):
            raise AdapterError(
                f"{origin}: tensor {name} holds non-finite values; discard this version and retrain"
            )


def merge(
    turbo_state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], weight: float = 1.0
) -> dict[str, Tensor]:
    """Turbo's state with the adapter's delta added in: a plain EAGLE-3 head, in turbo's dtypes."""
    merged = dict(turbo_state)
    for module in sorted({name.split(".")[0] for name in tensors}):
        path = _PATHS[module]
        delta = tensors[f"{module}.B"].float() @ tensors[f"{module}.A"].float()
        base = turbo_state[path]
        merged[path] = (base.float() + weight * delta.to(base.device)).to(base.dtype)
    return merged


def _metadata(path: Path, strings: Mapping[str, str]) -> AdapterMetadata:
    if strings.get("format") != FORMAT:
        raise AdapterError(
            f"{path}: format is {strings.get('format')!r}, expected {FORMAT!r}; export it again"
        )
    values: dict[str, str | int] = {}
    for field in dataclasses.fields(AdapterMetadata):
        if field.name not in strings:
            raise AdapterError(f"{path}: metadata field {field.name} is missing; export the adapter again")
        text = strings[field.name]
        if field.type != "int":
            values[field.name] = text
        elif text.isdigit() and (field.name != "rank" or int(text) > 0):
            values[field.name] = int(text)
        else:
            raise AdapterError(
                f"{path}: metadata field {field.name} is {text!r}, not a valid number; export it again"
            )
    return AdapterMetadata(**values)  # type: ignore[arg-type]  # built field by field above
