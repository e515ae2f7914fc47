"""A folder for each kind of layer, and beside them what all kinds share.

A folder has few files, each of which may read those before it:

- `spec.py`: what the kind is, as frozen values: its shapes, its slots, usual names of its tensors
- `config.py`: how it is read from the keys of configs, and the keys of GGUF files
- `memory.py`: its peak bytes, if torch computes it
- `module.py`: what computes it. It alone imports torch, and the rooms that run a model

Constants that kernels and plans share are in `mrs.kernels.workspace`, operations of the native
library in `mrs.graph`.

To add a kind of layer, write one folder or file, which nothing else has to name:

1. `spec.py`: a frozen spec below `Mixer` or `FeedForward` with its `slots` (the weights, by name
   and shape). A mixer also has its `cache_shape`: what a sequence remembers, in bytes for the plan.
2. `module.py`: its module of torch, which reads every field: `__call__` computes a step of several
   sequences, and `add_cache` declares their caches. A `RecurrentStateCache` has any tensors;
   prefixes, snapshots and drafts that are rolled back need no more of it.
3. `memory.py`: a function that counts the peak bytes of the module, with a comment of its phases.
4. `code = Code(…)` in the spec, which says where both are (`mixer.py`), and for which paths they
   name the fields that they compute. To be `shared` by processes it needs `shard_axes` and
   `with_shard`. A kind that computes all with operations of `mrs.graph.operations` may add them:
   then it is `native`, in one call with its layer, and its memory there is counted by itself.

What is missing is an error, or refused, by the name of the kind, and a fast path that does not know
it steps aside. The file of a family makes layers of it, and names its tensors, also in GGUF files.
`tests/families/made_up_kinds/windle.py` is such a kind, and `test_made_up_kind.py` tries it on all
paths. One with published models needs parity cases, too (`mrs.families`), and belongs to `LAYERS`
in `tests/model/test_known_fields.py`.
"""
