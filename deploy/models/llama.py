"""The target's forward pass, written for throughput: packed rows for features, graph-ready decode steps.

transformers computes the same (a test compares them); it is several times slower at both.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from deploy.models import decode_attention

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one decoder layer; q, k, v and gate, up are stacked."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Llama:
    """A dense Llama with tied or untied embeddings, weights on one device in one dtype."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    output: Tensor
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float

    @classmethod
    def from_directory(cls, path: Path, device: str, dtype: torch.dtype) -> Llama:
        """Load a transformers model directory (config.json, model.safetensors)."""
        raw = json.loads((path / "config.json").read_text())
        stored = load_file(path / "model.safetensors")
        state: dict[str, Tensor] = {name: tensor.to(device, dtype) for name, tensor in stored.items()}

        def layer(i: int) -> Layer:
            def get(name: str) -> Tensor:
                return state[f"model.layers.{i}.{name}.weight"]

            return Layer(
                attention_norm=get("input_layernorm"),
                qkv=torch.cat([get(f"self_attn.{n}_proj") for n in "qkv"]),
                out=get("self_attn.o_proj"),
                mlp_norm=get("post_attention_layernorm"),
                gate_up=torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")]),
                down=get("mlp.down_proj"),
            )

        rope = raw.get("rope_parameters") or {}
        embedding = state["model.embed_tokens.weight"]
        return cls(
            embedding=embedding,
            layers=tuple(layer(i) for i in range(raw["num_hidden_layers"])),
            norm=state["model.norm.weight"],
            output=state.get("lm_head.weight", embedding),
            heads=raw["num_attention_heads"],
            kv_heads=raw["num_key_value_heads"],
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            eps=raw["rms_norm_eps"],
            theta=rope.get("rope_theta", raw.get("rope_theta")),
        )

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [..., 1, head_dim/2] of positions [...], float32."""
        half = self.head_dim // 2
        steps = torch.arange(half, device=positions.device, dtype=torch.float32) / half
        angles = positions[..., None].float() * torch.pow(self.theta, -steps)
        return angles.cos()[..., None, :], angles.sin()[..., None, :]


def project(
    x: Tensor, norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor, kv_heads: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Residual x [..., H] to rotated q [..., heads, d], k [..., kv, d] and v [..., kv, d]."""
    h = functional.rms_norm(x, x.shape[-1:], norm, eps)
    stacked = (h @ qkv.T).view(*x.shape[:-1], -1, 2 * cos.shape[-1])
    turned, v = torch.split(stacked, [stacked.shape[-2] - kv_heads, kv_heads], dim=-2)
    first, second = turned.float().chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
    q, k = torch.split(turned, [turned.shape[-2] - kv_heads, kv_heads], dim=-2)
    return q, k, v


def finish(
    x: Tensor, attended: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float
) -> Tensor:
    """Residual x [..., H] and attention output [..., heads*d] to the residual after the layer."""
    x = x + attended @ out.T
    h = functional.rms_norm(x, x.shape[-1:], norm, eps)
    gate, up = (h @ gate_up.T).chunk(2, dim=-1)
    return x + (functional.silu(gate) * up) @ down.T


class Runner:
    """Compiled (on CUDA) forward passes over one Llama."""

    def __init__(self, llama: Llama, *, compiled: bool) -> None:
        self.llama = llama
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self._project, self._finish = wrap(project), wrap(finish)

    @torch.inference_mode()
    def features(
        self, token_ids: Tensor, positions: Tensor, segment: Tensor, layers: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Features [R, S, L*H] and last hidden [R, S, H] of packed rows int64 [R, S]; segments do not mix."""
        llama = self.llama
        mask = (segment[:, :, None] == segment[:, None, :]).tril()[:, None]
        cos, sin = llama.rotation(positions)
        group = llama.heads // llama.kv_heads
        x = functional.embedding(token_ids, llama.embedding)
        kept = []
        for i, layer in enumerate(llama.layers):
            if i in layers:
                kept.append(x)
            q, k, v = self._project(x, layer.attention_norm, layer.qkv, cos, sin, llama.kv_heads, llama.eps)
            k, v = (t.repeat_interleave(group, dim=2).transpose(1, 2) for t in (k, v))
            out = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask)
            x = self._after(layer, x, out.transpose(1, 2).flatten(2))
        return torch.cat(kept, dim=-1), functional.rms_norm(x, x.shape[-1:], llama.norm, llama.eps)

    def decode(self, token_ids: Tensor, positions: Tensor, cache: Tensor) -> Tensor:
        """One token per row: int64 [B] and cache [layers, 2, B, kv, L, d] (written) to logits [B, V]."""
        llama = self.llama
        rows = torch.arange(len(token_ids), device=token_ids.device)
        cos, sin = llama.rotation(positions)
        x = functional.embedding(token_ids, llama.embedding)
        for i, layer in enumerate(llama.layers):
            q, k, v = self._project(x, layer.attention_norm, layer.qkv, cos, sin, llama.kv_heads, llama.eps)
            cache[i, 0][rows, :, positions] = k
            cache[i, 1][rows, :, positions] = v
            out = decode_attention.attend(q, cache[i, 0], cache[i, 1], positions)
            x = self._after(layer, x, out.flatten(1))
        return functional.rms_norm(x, x.shape[-1:], llama.norm, llama.eps) @ llama.output.T

    def _after(self, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
        after: Tensor = self._finish(
            x, attended, layer.out, layer.mlp_norm, layer.gate_up, layer.down, self.llama.eps
        )
        return after
