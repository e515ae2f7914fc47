"""A folder for each kind of layer, and beside them what all kinds share.

A folder has few files, each of which may read those before it:

- `spec.py`: what the kind is, as frozen values: its shapes, its slots, usual names of its tensors
- `config.py`: how it is read from the keys of configs, and the keys of GGUF files
- `memory.py`: its peak bytes, if torch computes it
- `module.py`: what computes it. It alone imports torch, and the rooms that run a model

Constants that kernels and plans share are in `mrs.sizes`, operations of the native library in
`mrs.graph`.
"""
