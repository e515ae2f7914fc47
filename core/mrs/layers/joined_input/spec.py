"""What the layer of a draft head reads: a token, and what the target computed before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class JoinedInput:
    """W [norm(embedding of token t + 1); norm(hidden state of the target after token t)].

    The state is the target's after its final norm if the head `reads_normed`, or before. Where the
    target has not been yet, the head reads its own state in place of it: after the head's final
    norm if it `feeds_normed`, or before. With `state_first` the two halves are the other way round.

    Of several `heads`, the one k reads token t + 1 + k, and the target's state after token t; if
    they are `chained`, it reads in place of that what the head k - 1 computed there.

    Sources: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024 (2.2), whose heads are chained; the
    order of the two halves is that of the published weights, as vLLM and SGLang multiply them. That
    others are not chained: SGLang, `multi_layer_eagle_worker_v2`.
    """

    norm: Norm
    reads_normed: bool = True
    feeds_normed: bool = True
    state_first: bool = False
    heads: int = 1
    chained: bool = False

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a head of `hidden_size`."""
        yield from norm_slots("join.token_norm", hidden_size, self.norm)
        yield from norm_slots("join.state_norm", hidden_size, self.norm)
        yield Slot("join", (hidden_size, 2 * hidden_size))
