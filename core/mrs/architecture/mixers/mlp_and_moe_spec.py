"""An MLP and a mixture of experts in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrs.architecture.mixers.mixer import Code, FeedForward, Routing, Units
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.norm_rope import Norm
from mrs.architecture.slots import Slot, norm_slots


@dataclass(frozen=True)
class MlpAndMoe(FeedForward):
    """norm_1(mlp(norm(x))) + norm_2(experts(norm_in(x))), each norm with its own weights.

    The router reads x itself.
    """

    code = Code(
        "mrs.model.mlp_and_moe:MlpAndMoeModule",
        "mrs.plan.memory.activations.moe_activations:mlp_and_moe_bytes",
    )

    mlp: Mlp
    moe: Moe
    norm: Norm
    has_own_norm = True
    adds_up = True

    @property
    def routing(self) -> Routing:
        return self.moe.routing

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        for name in ("norm", "norm_1", "norm_in", "norm_2"):
            yield from norm_slots(f"ffn.{name}", hidden_size, self.norm)
        yield from self.mlp.slots(hidden_size)
        yield from self.moe.slots(hidden_size)

    @property
    def units(self) -> tuple[Units, ...]:
        return (*self.mlp.units, *self.moe.units)

    def with_units(self, parts: Sequence[range]) -> MlpAndMoe:
        own = len(self.mlp.units)
        return replace(
            self, mlp=self.mlp.with_units(parts[:own]), moe=self.moe.with_units(parts[own:])
        )
