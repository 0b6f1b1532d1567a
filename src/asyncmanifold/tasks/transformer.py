"""A small GPT-2-like transformer over characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CharacterTransformer(nn.Module):
    """A pre-norm decoder that scores the next character at every position of a text.

    Takes character numbers (batch, length) with a length of at most ``context`` and returns scores (batch,
    length, ``vocabulary``). The width of a head is set separately, since 6 heads do not divide 128. The
    output layer is the token embedding itself, so that the tied weights are one parameter with one name.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        context: int = 80,
        layers: int = 6,
        heads: int = 6,
        head_width: int = 21,
        width: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(context, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, head_width, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise weights as GPT-2 does: those that add to the residual stream shrink with depth."""
        nn.init.normal_(self.positions, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear):
                is_residual = name.endswith(("attention.output", "mlp.output"))
                scale = (2 * len(self.blocks)) ** -0.5 if is_residual else 1.0
                nn.init.normal_(module.weight, std=0.02 * scale)
                nn.init.zeros_(module.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """Return the scores of the next character at each position."""
        hidden = self.dropout(self.tokens(characters) + self.positions[: characters.shape[1]])
        for block in self.blocks:
            hidden = block(hidden)
        return F.linear(self.norm(hidden), self.tokens.weight)


class TransformerBlock(nn.Module):
    """Attention, then a dense network, each on the normalised stream and added to it."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, head_width, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the stream with both parts added."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        dense: Tensor = self.mlp(self.mlp_norm(hidden))
        return hidden + dense


class CausalAttention(nn.Module):
    """Multi-head self-attention; a position sees itself and earlier ones.

    Differs from GPT-2: no dropout on the attention weights, which would keep torch from using its fused
    kernel on the CPU and make a step take 1.5 to 2 times as long.
    """

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.input = nn.Linear(width, 3 * heads * head_width)
        self.output = nn.Linear(heads * head_width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the attention output of each position."""
        batch, length, _ = hidden.shape
        parts = self.input(hidden).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.dropout(self.output(heads.transpose(1, 2).reshape(batch, length, -1)))


class MLP(nn.Module):
    """Two dense layers, the inner one four times as wide."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the transformed positions."""
        return self.dropout(self.output(F.gelu(self.input(hidden))))
