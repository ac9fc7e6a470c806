"""The model of those examples that leave it as it is: a small transformer that predicts the next character."""

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

HEADS = 4


class Block(torch.nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # The gradient of a bias of keys is zero but for rounding, which Adam would make steps of.
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(layer_norm(x, x.shape[-1:])).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(layer_norm(x, x.shape[-1:]))))


class Model(torch.nn.Module):
    """forward() returns the cross entropy.

    Args:
        kinds: of characters.
        length: characters in a sequence.
    """

    def __init__(self, kinds: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(kinds, width)
        self.position = torch.nn.Parameter(torch.randn(length, width) * 0.1)
        self.blocks = torch.nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = torch.nn.Linear(width, kinds)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """inputs, targets: (rows, length), int64."""
        x = self.embedding(inputs) + self.position
        for block in self.blocks:
            x = self.through(block, x)
        return cross_entropy(self.head(layer_norm(x, x.shape[-1:])).flatten(0, 1), targets.flatten())

    def through(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        """What the block makes of x, (rows, length, width)."""
        return block(x)
