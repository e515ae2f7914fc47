"""Quantization: what files store, how it is decoded, and what is stored on each device.

A quantization format (`mrs.formats`) is how one tensor is stored. A method is what a checkpoint's
config names: GPTQ, AWQ and so on, a file each, with the schemes by which weights are several
tensors and how these become rows of a format. `isq.py` and `storage.py` choose the format of each
parameter, `targets.py` and `matrix.py` are its memory and its products, `gguf/` decodes and encodes
blocks. Nothing imports torch before weights are loaded, except in `gguf/`, `matrix.py` and
`targets.py`.

To add a quantization format:

1. Add its block size to `FORMATS` in `core/mrs/formats.py`.
2. Add its decoder (and encoder) to a file of `core/mrs/quantization/gguf/` and to that file's
   tables.
3. To multiply without decoding on a CPU, add it to `PACKED_FORMATS` in
   `core/mrs/kernels/packed_layout.py` and its unpacking to `core/mrs/kernels/cpu/native/`, and
   build in place: `python -m mrs.kernels.cpu.native.compile`. On a GPU, add it to `PLANE_LAYOUTS`
   in `core/mrs/quantization/gguf/fields.py`.

To add a method: a file here with a `WeightScheme` and a function that reads it from a config, and
a row in `METHODS` of `core/mrs/architecture/quantization_methods.py`.
"""
