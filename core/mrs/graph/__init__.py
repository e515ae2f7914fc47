"""What a layer computes, as a short list of operations.

A layer's spec emits the list once (`layer_graph`). The native library interprets it in one call
(`program`), torch one operation after another, and the plan reads the memory of its values off it,
so that all agree.
"""
