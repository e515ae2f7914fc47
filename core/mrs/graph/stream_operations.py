"""The operations of a layer of several streams (AltUp) around those of the layer in it."""

from __future__ import annotations

from mrs.graph.feed_forward_operations import own_input
from mrs.graph.operations import (
    STREAM,
    Activate,
    Add,
    AddToRuns,
    AddWeighed,
    Compute,
    Graph,
    Scale,
    ScaleEach,
    Split,
    Take,
)
from mrs.layers.altup.spec import AltUp
from mrs.layers.layer import Layer

#: What the layer in it is called as a module, of the active stream (h).
INNER_LAYER = "layer"


def stream_graph(layer: Layer, hidden_size: int) -> tuple[Graph, int]:
    """All operations, and the value of the new streams, (streams * h)."""
    altup = layer.altup
    assert altup is not None
    count = altup.streams
    graph = Graph(count * hidden_size)
    weights = _weights(graph, altup, _active(graph, altup, STREAM), "prediction", count * count)
    streams = graph.value(count * hidden_size)
    graph.add(Split(STREAM, (streams,)), AddWeighed(streams, STREAM, weights, count))
    predicted, computed = _active(graph, altup, streams), graph.value(hidden_size)
    graph.add(Compute(predicted, computed, INNER_LAYER))
    weights = _weights(graph, altup, computed, "correction", count)
    graph.add(Scale(predicted, -1.0), Add(computed, predicted))
    graph.add(AddWeighed(streams, computed, weights, count, more=1.0))
    if layer.gated_input is not None:
        active = _active(graph, altup, streams)
        if altup.scaled:
            graph.add(ScaleEach(active, "altup.scale"))
        graph.add(AddToRuns(streams, own_input(graph, layer.gated_input, active)))
    return graph, streams


def _active(graph: Graph, altup: AltUp, streams: int) -> int:
    """A new value (h): the stream that the layer computes."""
    width = graph.widths[streams] // altup.streams
    out = graph.value(width)
    graph.add(Take(streams, out, altup.active * width))
    return out


def _weights(graph: Graph, altup: AltUp, x: int, name: str, width: int) -> int:
    """A new value: what a small map makes of streams, which are weighed by x (h)."""
    normed = graph.normed(x, "altup.norm", altup.norm)
    weighed = graph.small_product(normed, "altup.router", altup.streams)
    graph.add(Scale(weighed, 1 / graph.widths[x]), Activate(weighed, None, "tanh"))
    return graph.small_product(weighed, f"altup.{name}", width)
