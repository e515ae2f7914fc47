"""What a layer computes, as a short list of operations.

A layer's spec emits the list once (`layer_graph`). The native library interprets it in one call,
and the plan reads the memory of its values off it (`program`), so that both agree.
"""
