"""One file for each model family: its config keys, its tensor names, and the tricks it alone has.

To add a family:

1. Write `core/mrs/families/<model_type>.py` with a `FAMILY`: a `read` function from config to
   `ModelSpec`, and the tensor names that differ from those in `architecture/tensor_names.py`. Read
   what other families have, too, with `config.py` of each kind in `layers/`,
   whose `spec.py` has usual names; what only a relative has, import from its file.
2. Add its cases to `tests/families/parity_cases.py` (and to `gguf_files.py` if its metadata is
   special): they compare every position's logits with those of transformers. Those of an encoder
   are in `tests/embeddings/encoder_cases.py`. Then run `python tests/table.py --slow`, which writes
   `tests/families.md`.
3. A feature that no spec has yet becomes a field with a default: of a module in
   `spec.py` of its kind, of a layer in `layers/layer.py`, or of the model. What reads it adds
   operations to the list of a layer, in `graph/`, or is `module.py` of a kind that has no list for
   torch; an operation that is new is defined in `model/torch_operations.py`. Then
   the family is right, and slow. Rather than another field of an operation, make a new operation:
   executors match operations by their first fields (`graph/known_operations.py` guards them). What
   only changes stored values, as logarithms, is a `kind` of the slot instead. Paths that compute
   several operations in one call, CUDA graphs and shares of layers name the fields that they know
   (`layers/known_fields.py`), and step aside, or refuse by name, for any other; a plan has room to
   spare. Once such a path computes the field, name it there:
   - native programs, and with them their planned bytes: `graph/layer_graph.py`, which names
     the fields, and `model/native_program.py`, which makes new operations of those that
     `kernels/cpu/native/` has
   - blocks of layers in Triton: `model/fusable.py`
   - CUDA graphs: `engine/decode_graph.py`
   - processes that share layers: `architecture/shardable.py`, and `with_shard` of the spec for
     what the shapes of slots do not cut. A field of `Attention` is one of `EncoderAttention`, too
   - planned bytes: those of a new operation in `plan/memory/torch_activations.py`, if it makes
     values or needs room, or the formula in `memory.py` of a kind without a list; the field in
     `plan/memory/uncounted.py`

   A kind of layer that is new as a whole is one folder or file: `layers/__init__.py`.
   `tests/model/test_known_fields.py` asks about each of them: a path that does not compute the
   field has it among those that it `leaves`. What a layer reads of another layer
   must stay in one process: `joined_layers` in `distributed/shard.py`.
4. Add it to `Architecture`, or an encoder to `EmbeddingArchitecture`, in
   `core/mrs/api/architectures.py`, and to the table in `man/models.md`.
"""
