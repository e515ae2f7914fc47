"""What every token mixer and every feed-forward module declares of itself.

The planner, the loader and the cache read only this, so that none of them has a list of kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from math import prod
from typing import Any, ClassVar, NamedTuple, Self

from mrs.layers.rope.spec import Rope
from mrs.layers.slots import Slot


class CacheShape(NamedTuple):
    """The values that a mixer caches of one sequence.

    token_rows      widths of the rows of each token: keys and values, or one latent vector
    head_dims       the widths of a key and of a value of one head, which may be quantized; none if
                    rows stay as they are
    window          the sliding window; None if all tokens stay in the cache
    image_rows      widths of the rows of each image key
    states          shapes of the states in float32, whatever the length: what convolutions remember
                    comes first
    """

    token_rows: tuple[int, ...] = ()
    window: int | None = None
    image_rows: tuple[int, ...] = ()
    states: tuple[tuple[int, ...], ...] = ()
    head_dims: tuple[int, ...] = ()

    @property
    def state_values(self) -> int:
        """The values of all states."""
        return sum(map(prod, self.states))


class Routing(NamedTuple):
    """A token uses `top_k` of `experts`."""

    top_k: int
    experts: int


class ShardAxis(NamedTuple):
    """Along what a module is cut for processes: `total` heads or columns, of which each gets some.

    What the cut leaves of the module's slots says the rest: a weight with fewer rows has an output
    that is shared, and one with fewer columns an output that is a part of a sum.
    """

    what: str
    total: int


class Code(NamedTuple):
    """Where the code of a kind of module is: `package.file:name`, imported when it is needed.

    operations        what adds its operations to a graph: of (Graph, spec, value), returns a value;
                      without it the native library does not compute the module
    module            a class of torch, of (spec, weights, rope) for a mixer, of (spec, weights) for
                      a feed-forward module, with what operations call: caches of keys, experts
    activation_bytes  if that class computes the module in place of operations, what counts its peak
                      bytes: of (spec, ForwardShape, hidden size, StorageOf)
    fields            all fields of the spec, with spaces between their names: whoever adds one
                      names it here once the code takes it into account on all of its `paths`
    paths             the paths that take such a module: with all bytes `planned`, `shared` over
                      processes by its `shard_axes`, `captured` in CUDA graphs, which needs a module
                      that reads nothing on the host, `native` by its operations. For any other
                      path the plan has room to spare, processes refuse the module by its name, and
                      other paths step aside. Kinds that the tables of those paths name
                      (`mrs.layers.known_fields`) leave out both.
    """

    module: str = ""
    activation_bytes: str = ""
    operations: str = ""
    fields: str = ""
    paths: str = ""


def loaded(place: str) -> Any:
    """What is at `package.file:name`."""
    file, name = place.split(":")
    return getattr(import_module(file), name)


class Module(ABC):
    """A part of a layer with weights, which several processes may share.

    Each kind names its `code`; a part of vision towers alone has none.
    """

    code: ClassVar[Code]

    @abstractmethod
    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a model of `hidden_size`."""

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        """Along what it is cut for several processes; empty if it cannot be."""
        return ()

    def with_shard(self, ranges: Sequence[range]) -> Self:
        """The module of a process that has these ranges of the `shard_axes`."""
        if ranges:
            raise TypeError(f"{type(self).__name__} has `shard_axes`, and no `with_shard`")
        return self

    @classmethod
    def own_code(cls) -> Code:
        """The code of this very kind; TypeError if it has none, though a kind above it may."""
        code: Code | None = vars(cls).get("code")
        if code is None:
            raise TypeError(f"{cls.__name__} names no `code` (mrs.layers.mixer.Code)")
        if code.activation_bytes and not code.module:
            raise TypeError(f"{cls.__name__} counts `activation_bytes` of no `module`")
        if code.module and not (code.operations or code.activation_bytes):
            raise TypeError(f"{cls.__name__} has neither `operations` nor `activation_bytes`")
        if code.paths:
            _require_all_fields(cls, code.fields)
        return code


def _require_all_fields(kind: type[Module], names: str) -> None:
    """TypeError if the code of a kind does not name all of its fields, or others."""
    named = names.split()
    own = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in (*own, *named):
        if name not in named:
            raise TypeError(f"{kind.__name__} has a field {name!r}, which its `code` does not name")
        if name not in own:
            raise TypeError(f"{kind.__name__} has no field {name!r}, which its `code` names")


class FeedForward(Module):
    """A module that transforms each token by itself.

    If it `has_own_norm`, it reads x itself instead of the layer's norm of x. If it `adds_up`, it
    adds up the parts of all processes itself.
    """

    has_own_norm = False
    adds_up = False

    @property
    def routing(self) -> Routing | None:
        """How many experts it has and uses, if it has any."""
        return None


class Mixer(Module):
    """A module through which tokens of one sequence influence each other.

    `unused_slots` are tensors that files may have and that are ignored. A sequence has
    `cache_count` caches for it.
    """

    rope: Rope | None
    unused_slots: tuple[str, ...] = ()
    cache_count = 1

    @property
    @abstractmethod
    def cache_shape(self) -> CacheShape:
        """What is cached of a sequence."""

    def shared_slots(self, hidden_size: int) -> Iterator[Slot]:
        """Weights outside of the layers, which all layers with such a mixer read."""
        return iter(())

    def cached_multiplications(self, context_tokens: int, image_keys: int) -> int:
        """Cached values that one token is multiplied with after `context_tokens` tokens.

        0 for a state, whose bytes are counted instead.
        """
        return 0
