"""A folder for each kind of layer, and beside them what all kinds share.

A folder has few files, each of which may read those before it:

- `spec.py`: what the kind is, as frozen values: its shapes, its slots, usual names of its tensors
- `config.py`: how it is read from the keys of configs, and the keys of GGUF files
- `memory.py`: peak bytes of what is not operations of `mrs.graph`
- `module.py`: what computes that, or has caches. It alone imports torch, and the rooms that run a
  model

Constants that kernels and plans share are in `mrs.kernels.workspace`.

To add a kind of layer, write one folder or file, which nothing else has to name:

1. `spec.py`: a frozen spec below `Mixer` or `FeedForward` with its `slots` (the weights, by name
   and shape). A mixer also has its `cache_shape`: what a sequence remembers, in bytes for the plan;
   and its `shared_slots`, if there are weights outside of the layers that all of them read.
   Prefixes, snapshots and drafts that are rolled back need no more of states than their shapes.
2. A function that adds its operations to a graph (`mrs.graph.state_operations` has some), which
   reads every field. Torch and the native library compute them, and their memory follows from them.
   A mixer that caches more than states has a module with `add_cache` and what operations call. What
   convolutions remember comes first among the states.
3. If there is no operation for something: in `module.py` a class whose `__call__` computes a step
   of several sequences with torch (a mixer's is a `mrs.model.modules.StateCaches`), and in
   `memory.py` a function that counts its peak bytes, with a comment of its phases.
4. `code = Code(…)` in the spec, which says where that is, and which paths take it (`mixer.py`);
   with any, its `fields` name all of the spec, `rope` too. To be `shared` by processes it needs
   `shard_axes` and `with_shard`, and to be `native` all has to be operations.

What is missing is an error, or refused, by the name of the kind, and a fast path that does not know
it steps aside. The file of a family makes layers of it, and names its tensors, also in GGUF files.
`tests/families/made_up_kinds/windle.py` is such a kind, with a module, and `test_made_up_kind.py`
its test: in plain torch what the kind computes, and `EveryPath`, which compares all paths with it
(`mrs.families` has an example). Every kind of this folder belongs to `LAYERS` in
`tests/model/test_known_fields.py`, or to `OTHERS` if no CUDA graph captures it. One with published
models needs parity cases, too.
"""
