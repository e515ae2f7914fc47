"""A compact LLaVA in plain torch: a CLIP tower, a projector and the Llama of the other demo.

The parameter names are those of published LLaVA 1.5 checkpoints, so that `state_dict()` is the
checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo_training.text.network import Body, rotation
from demo_training.text.network import Shape as TextShape


@dataclass(frozen=True)
class VisionShape:
    """The hyper-parameters of the tower, under the names that config.json gives them."""

    image_size: int = 96
    patch_size: int = 12
    hidden_size: int = 128
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_channels: int = 3
    layer_norm_eps: float = 1e-5

    @property
    def patches(self) -> int:
        """How many patches, and so tokens, an image has."""
        return (self.image_size // self.patch_size) ** 2

    def as_config(self) -> dict[str, object]:
        """The fields as config.json has them."""
        return asdict(self)


@dataclass(frozen=True)
class Shape:
    """Both parts. The language matrices are 256 wide, so that every block quantization applies."""

    vision: VisionShape = field(default_factory=VisionShape)
    text: TextShape = field(
        default_factory=lambda: TextShape(
            vocab_size=768, num_hidden_layers=3, max_position_embeddings=2048
        )
    )


class TowerAttention(nn.Module):
    """Attention of each patch to all."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.heads = shape.num_attention_heads
        width = shape.hidden_size
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, D)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(q, k, v)
        result: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return result


class TowerMlp(nn.Module):
    """Two layers with CLIP's quick approximation of GELU between them."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.fc2 = nn.Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.fc1(x)
        result: Tensor = self.fc2(inner * torch.sigmoid(1.702 * inner))
        return result


class TowerLayer(nn.Module):
    """One pre-norm encoder layer."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.self_attn = TowerAttention(shape)
        self.layer_norm1 = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)
        self.mlp = TowerMlp(shape)
        self.layer_norm2 = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        result: Tensor = x + self.mlp(self.layer_norm2(x))
        return result


class TowerEmbeddings(nn.Module):
    """Patches and the class token, each with its position."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        width, patch = shape.hidden_size, shape.patch_size
        self.class_embedding = nn.Parameter(torch.randn(width) * 0.02)
        self.patch_embedding = nn.Conv2d(shape.num_channels, width, patch, patch, bias=False)
        self.position_embedding = nn.Embedding(shape.patches + 1, width)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(pixels), 1, -1)
        return torch.cat((first, patches), dim=1) + self.position_embedding.weight


class TowerEncoder(nn.Module):
    """The layers, under the name that checkpoints give them."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TowerLayer(shape) for _ in range(shape.num_hidden_layers))


class VisionModel(nn.Module):
    """Pixels (B, 3, side, side) to patch features (B, patches, hidden), the class token left out.

    The last norm is CLIP's and no part of what LLaVA reads; it stays as it was made.
    """

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.embeddings = TowerEmbeddings(shape)
        self.pre_layrnorm = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)  # CLIP's spelling
        self.encoder = TowerEncoder(shape)
        self.post_layernorm = nn.LayerNorm(shape.hidden_size, shape.layer_norm_eps)

    def forward(self, pixels: Tensor) -> Tensor:
        x: Tensor = self.pre_layrnorm(self.embeddings(pixels))
        for layer in self.encoder.layers:
            x = layer(x)
        return x[:, 1:]


class Tower(nn.Module):
    """The tower, under the name that checkpoints give it."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.vision_model = VisionModel(shape)

    def forward(self, pixels: Tensor) -> Tensor:
        result: Tensor = self.vision_model(pixels)
        return result


class Projector(nn.Module):
    """From the tower's width to the language model's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(shape.vision.hidden_size, shape.text.hidden_size)
        self.linear_2 = nn.Linear(shape.text.hidden_size, shape.text.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear_2(F.gelu(self.linear_1(x)))
        return result


class Language(nn.Module):
    """The Llama, its head not tied to the embedding."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)


class Llava(nn.Module):
    """Token ids (B, T) and images to last hidden states (B, T, hidden)."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Shape, image_token: int) -> None:
        super().__init__()
        self.image_token = image_token
        self.vision_tower = Tower(shape.vision)
        self.multi_modal_projector = Projector(shape)
        self.language_model = Language(shape.text)
        cosines, sines = rotation(shape.text, shape.text.max_position_embeddings)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.initialize()

    def initialize(self) -> None:
        """Small normal weights, no biases."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02 if parameter.dim() == 2 else 0.05)

    def forward(self, tokens: Tensor, pixels: Tensor) -> Tensor:
        """`pixels` (P, 3, side, side) fill the image tokens, row by row; P may be 0."""
        return self.hidden_states(tokens, self.image_embeddings(pixels))

    def image_embeddings(self, pixels: Tensor) -> Tensor:
        """Pixels (P, 3, side, side) to what stands for each image token, (P, patches, hidden)."""
        result: Tensor = self.multi_modal_projector(self.vision_tower(pixels))
        return result

    def hidden_states(self, tokens: Tensor, image_embeddings: Tensor) -> Tensor:
        """Token ids, and what their image tokens stand for, to last hidden states."""
        is_image = tokens == self.image_token
        embedded: Tensor = self.language_model.model.embed_tokens(tokens)
        embedded = embedded.masked_scatter(is_image[..., None], image_embeddings)
        length = tokens.shape[1]
        result: Tensor = self.language_model.model(
            embedded, self.cosines[:length], self.sines[:length]
        )
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, hidden) to (…, vocabulary)."""
        result: Tensor = self.language_model.lm_head(hidden)
        return result
