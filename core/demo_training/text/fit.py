"""Train the demo model: batches of like length, Muon and AdamW, one pass over fresh dialogues."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from .network import Llama, Shape

Encoded = tuple[list[int], list[bool]]
_WIDTH_STEP = 16
_ROW_STEP = 256


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train."""

    dialogues: int = 60_000
    batch_tokens: int = 4096
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    warmup_share: float = 0.03
    seed: int = 1234


def batches(chats: list[Encoded], recipe: Recipe) -> list[tuple[Tensor, Tensor]]:
    """Tokens and targets, both (B, T), of chats of like length; target -100 where none counts."""
    steps = [
        to_tensors([chats[index] for index in members], width)
        for width, members in like_length(chats, recipe.batch_tokens)
    ]
    Random(recipe.seed).shuffle(steps)
    return steps


def like_length(chats: list[Encoded], batch_tokens: int) -> list[tuple[int, list[int]]]:
    """Batches as the width of their rows and the indices of their chats.

    Only a few shapes occur, because the bf16 kernels of a CPU are compiled anew for each shape.
    Chats that do not fill a batch of their width are left out.
    """
    by_width: dict[int, list[int]] = {}
    for index, (ids, _) in enumerate(chats):
        width = -(-(len(ids) - 1) // _WIDTH_STEP) * _WIDTH_STEP
        by_width.setdefault(width, []).append(index)
    made = []
    for width, members in sorted(by_width.items()):
        rows = max(1, batch_tokens // width)
        groups = [members[start : start + rows] for start in range(0, len(members), rows)]
        made += [(width, group) for group in groups if len(group) == rows]
    return made


def to_tensors(group: list[Encoded], width: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets, both (chats, width), of chats of at most `width` + 1 tokens."""
    tokens = torch.zeros(len(group), width, dtype=torch.long)
    targets = torch.full((len(group), width), -100)
    for row, (ids, own) in enumerate(group):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        mine = torch.tensor(own[1:])
        targets[row, : len(ids) - 1][mine] = torch.tensor(ids[1:])[mine]
    return tokens, targets


def rate_factor(progress: float, warmup_share: float) -> float:
    """The learning rate's share of its peak: linear warm-up, then half a cosine to zero."""
    if progress < warmup_share:
        return progress / warmup_share
    done = (progress - warmup_share) / (1 - warmup_share)
    return 0.5 * (1 + math.cos(math.pi * done))


def fit(shape: Shape, chats: list[Encoded], recipe: Recipe, say: Callable[[str], None]) -> Llama:
    """The trained model. Deterministic for a given machine, thread count and torch."""
    torch.manual_seed(recipe.seed)
    model = Llama(shape)
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    steps = batches(chats, recipe)
    started, total, counted = time.monotonic(), 0.0, 0
    for step, (tokens, targets) in enumerate(steps):
        factor = rate_factor((step + 1) / (len(steps) + 1), recipe.warmup_share)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
        total += _step(model, tokens, targets, optimizers)
        counted += 1
        if counted == 50 or step + 1 == len(steps):
            elapsed = time.monotonic() - started
            say(f"step {step + 1}/{len(steps)}  loss {total / counted:.4f}  {elapsed:.0f} s")
            total, counted = 0.0, 0
    return model


def _step(
    model: Llama, tokens: Tensor, targets: Tensor, optimizers: list[torch.optim.Optimizer]
) -> float:
    chosen = (targets.flatten() >= 0).nonzero().squeeze(1)
    surplus = len(chosen) % _ROW_STEP  # dropped, so that the head, too, gets few different shapes
    chosen = chosen[: len(chosen) - surplus] if len(chosen) > _ROW_STEP else chosen
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.logits(model(tokens).flatten(0, 1)[chosen])
    loss = F.cross_entropy(logits.float(), targets.flatten()[chosen])
    torch.autograd.backward(loss)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()
