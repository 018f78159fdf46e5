"""The EAGLE-3 head, the same computation as vLLM's llama_eagle3 (hidden norm after the residual is taken)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from adaptive.speculator.adapter import Adapter
    from adaptive.speculator.config import SpeculatorConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 as vLLM does."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; any dtype in, the same dtype out."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    """Projections of the drafter's attention; the input is [embedding, hidden], twice the hidden size."""

    def __init__(self, config: SpeculatorConfig) -> None:
        super().__init__()
        size, head = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(2 * size, config.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(2 * size, config.num_key_value_heads * head, bias=False)
        self.v_proj = nn.Linear(2 * size, config.num_key_value_heads * head, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head, size, bias=False)


class MLP(nn.Module):
    """Gated SiLU feed-forward projections."""

    def __init__(self, config: SpeculatorConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class DecoderLayer(nn.Module):
    """The head's single layer, with names as in EAGLE-3 checkpoints ("midlayer")."""

    def __init__(self, config: SpeculatorConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)


class Eagle3Head(nn.Module):
    """One drafter; `embedding` [vocab_size, hidden_size] is the target's table, never saved or trained.

    A slot t of a sequence x holds token x[t+1] and the features of position t, and drafts x[t+2].
    """

    d2t: Tensor
    t2d: Tensor
    embedding: Tensor

    def __init__(self, config: SpeculatorConfig, embedding: Tensor) -> None:
        super().__init__()
        if tuple(embedding.shape) != (config.vocab_size, config.hidden_size):
            raise ValueError(
                f"embedding has shape {tuple(embedding.shape)}, the drafter needs "
                f"{(config.vocab_size, config.hidden_size)}; use the target the drafter was trained for"
            )
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.midlayer = DecoderLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        mask = torch.zeros(config.vocab_size, dtype=torch.bool)
        mask[: config.draft_vocab_size] = True
        self.register_buffer("t2d", mask)
        self.register_buffer("embedding", embedding.detach(), persistent=False)

    @property
    def draft_token_ids(self) -> Tensor:
        """Target token id of each draft vocabulary row: int64 [draft_vocab_size]."""
        return torch.arange(self.config.draft_vocab_size, device=self.d2t.device) + self.d2t

    def set_draft_vocabulary(self, token_ids: Tensor) -> None:
        """Choose the draft vocabulary: sorted unique int64 target ids [draft_vocab_size]."""
        ids = token_ids.to(self.d2t.device)
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    def fuse(self, features: Tensor) -> Tensor:
        """Features [..., L*H] to the drafter's hidden state [..., hidden_size]."""
        return self.fc(features)  # type: ignore[no-any-return]  # torch types modules as Any

    def layer_input(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        """Token ids [...] and hidden [..., H] to the attention's input [..., 2H]."""
        embeds = functional.embedding(token_ids, self.embedding).to(hidden.dtype)
        layer = self.midlayer
        return torch.cat([layer.input_layernorm(embeds), layer.hidden_norm(hidden)], dim=-1)

    def key_value(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Attention input [B, S, 2H] to rotated keys and values, each [B, S, kv_heads, head_dim]."""
        shape = (*x.shape[:-1], self.config.num_key_value_heads, self.config.head_dim)
        key = self.midlayer.self_attn.k_proj(x).view(shape)
        return self.rotate(key, positions), self.midlayer.self_attn.v_proj(x).view(shape)

    def query(self, x: Tensor, positions: Tensor, adapter: Adapter | None, weight: float | Tensor) -> Tensor:
        """Attention input [B, Q, 2H] to rotated queries [B, Q, heads, head_dim]."""
        q = self._project(self.midlayer.self_attn.q_proj, "q_proj", x, adapter, weight)
        return self.rotate(q.view(*x.shape[:-1], -1, self.config.head_dim), positions)

    def finish(
        self, attended: Tensor, residual: Tensor, adapter: Adapter | None, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attention output [B, Q, heads*head_dim] and residual [B, Q, H] to (normed hidden, raw hidden).

        The first feeds the LM head; the second is the hidden state of the next draft pass.
        """
        layer = self.midlayer
        residual = residual + self._project(layer.self_attn.o_proj, "o_proj", attended, adapter, weight)
        x = layer.post_attention_layernorm(residual)
        gate = self._project(layer.mlp.gate_proj, "gate_proj", x, adapter, weight)
        up = self._project(layer.mlp.up_proj, "up_proj", x, adapter, weight)
        down = self._project(layer.mlp.down_proj, "down_proj", functional.silu(gate) * up, adapter, weight)
        hidden = residual + down
        return self.norm(hidden), hidden

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding (halves rotated, as Llama): x [B, S, heads, head_dim], positions int64 [B, S]."""
        half = self.config.head_dim // 2
        steps = torch.arange(half, device=x.device, dtype=torch.float32) / half
        angles = positions[..., None].float() * torch.pow(self.config.rope_theta, -steps)
        cos, sin = angles.cos()[..., None, :], angles.sin()[..., None, :]
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

    def _project(
        self, linear: nn.Linear, name: str, x: Tensor, adapter: Adapter | None, weight: float | Tensor
    ) -> Tensor:
        out: Tensor = linear(x)
        return out if adapter is None or name not in adapter.deltas else out + adapter.delta(name, x, weight)
