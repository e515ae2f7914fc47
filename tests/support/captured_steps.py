"""Steps that run again where a CUDA graph would be replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from mrs.engine.decode_graph import DecodeGraphs
from mrs.engine.engine import Engine
from mrs.model.decoder import Decoder
from support.fake_gpu import FakeGpu, Traffic


def run_again(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """In place of a CUDA graph: every replay computes everything again."""
    return step


def use_graphs(
    engine: Engine,
    decoder: Decoder,
    capture: Callable[[Callable[[], Tensor]], Callable[[], Tensor]] = run_again,
    most_rows: int = 8,
) -> DecodeGraphs:
    """Let an engine compute its decode steps as if they were CUDA graphs."""
    graphs = DecodeGraphs(decoder, engine.caches.space, most_rows, capture)
    engine._graphs = graphs
    return graphs


@dataclass
class FakeCapture:
    """Records what steps do on a fake GPU; a replay is a step that has to do the same."""

    gpu: FakeGpu
    #: What the kernels of Triton were launched with.
    launches: list[str]
    captured: list[Traffic] = field(default_factory=list)
    replays: int = 0

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def run() -> tuple[Tensor, Traffic]:
            outside, inside = self.gpu.traffic, self.gpu.record()
            self.launches.clear()
            out = step()
            self.gpu.traffic = outside
            inside.operations += self.launches
            return out, inside

        out, captured = run()
        self.captured.append(captured)

        def replay() -> Tensor:
            self.replays += 1
            _, again = run()
            assert again == captured, "a replay would not do what the step does now"
            return out

        return replay
