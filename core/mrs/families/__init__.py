"""One small file for each model family.

To add a family:

1. Write `core/mrs/families/<model_type>.py` with a `FAMILY`: a `read` function from config to
   `ModelSpec`, with the readers in `architecture/readers/`, and the tensor names that differ from
   those in `architecture/tensor_names.py`; modules that several families have are in
   `architecture/names/`.
2. Add its cases to `tests/families/parity_cases.py` (and to `gguf_files.py` if its metadata is
   special): they compare every position's logits with those of transformers. Those of an encoder
   are in `tests/embeddings/encoder_cases.py`. Then run `python tests/table.py --slow`, which writes
   `tests/families.md`.
3. A feature that no spec has yet becomes a field in `architecture/layers.py`, which the modules in
   `model/` read. A test allows a family 60 lines: if it needs more, a spec or a reader of a concept
   is missing.
4. Add it to `Architecture`, or an encoder to `EmbeddingArchitecture`, in
   `core/mrs/api/architectures.py`.
"""
