"""One file for each model family: its config keys, its tensor names, and the tricks it alone has.

A family with a trick that no other has, whole; `Ode` multiplies what goes into the last product of
each MLP by a learned gain. Its file, `families/<model_type>.py`:

    def read(config: Config) -> ModelSpec:
        norm, mlp = read_norm(config), read_mlp(config, inner_gain=True)
        layers = [Layer(read_attention(config), mlp, norm)] * layer_count(config)
        return decoder(config, "ode", layers, norm)

    FAMILY = Family(
        "ode",
        read,
        gguf_arch="ode",
        safetensors={"ffn.inner_gain": "mlp.inner_gain"},
        gguf={"ffn.inner_gain": "ffn_inner_gain.weight"},
    )

The trick: a field of `Mlp` and its weight (`layers/mlp/spec.py`), and an operation that reads it
(`graph/feed_forward_operations.py`). Only what no operation computes needs a new one, in
`graph/operations.py` and `model/torch_operations.py`:

    inner_gain: bool = False
    ...
        if self.inner_gain:
            yield Slot("ffn.inner_gain", (self.intermediate,), "vector", suffix="")

    if mlp.inner_gain:
        graph.add(ScaleEach(gate, f"{name}.inner_gain"))

Its test, `tests/families/test_<model_type>.py`, makes safetensors and GGUF files of those names and
compares every path with plain torch: chunks, batches, prefixes, drafts, ISQ, bf16, without the
native library, in several processes, and all bytes with the plan.

    class Ode(PlainLlama):
        def inner(self, x: Tensor, at: str) -> Tensor:
            return super().inner(x, at) * self.weights[f"{at}mlp.inner_gain"]

    class TestOde(EveryPath):
        case = PlainCase(
            *("ode", "default", {}, "ode"),
            plain=Ode,
            gguf_like="qwen2",
            gguf_names={"mlp.inner_gain": "ffn_inner_gain.weight"},
        )
        refused = {"shards": "inner_gain"}

To add a family:

1. Write `core/mrs/families/<model_type>.py` with a `FAMILY`: a `read` function from config to
   `ModelSpec`, and the tensor names that differ from those in `architecture/tensor_names.py`. Read
   what other families have, too, with `config.py` of each kind in `layers/`,
   whose `spec.py` has usual names; what only a relative has, import from its file.
2. A feature that no spec has yet becomes a field with a default: of a module in
   `spec.py` of its kind, of a layer in `layers/layer.py`, or of the model. What reads it adds
   operations to the list of a layer, in `graph/`, or is `module.py` of a kind that has no list for
   torch. Then the family is right, and slow. Rather than another field of an operation, make a new
   operation: executors match operations by their first fields (`graph/known_operations.py` guards
   them). The operations of attention are in `graph/attention_operations.py`; `ScaleEach` multiplies
   by a learned vector, or by a number for each head with `size`. Experts have the slots of
   `mlp_slots` alone. What only changes stored values, as logarithms, is a `kind` of the slot
   instead: its name in `layers/slots.py`, its function in `weights/binding.py`, and the pair in
   `architecture/describe_safetensors.py`. GGUF files are read as they are: one that stores the
   kind so, too, needs the pair in `describe_gguf.py`. A kind of layer that is new as a whole is one
   folder or file: `layers/__init__.py`. What a layer reads of another layer must stay in one
   process: `joined_layers` in `distributed/shard.py`.
3. Test it. If transformers has it: by its cases in `tests/families/parity_cases.py` (and in
   `tests/support/gguf_writer.py` if its metadata is special), or an encoder's in
   `tests/embeddings/encoder_cases.py`. If not: as above, where `refused` names what processes do
   not compute yet; `tests/families/made_up_paths.py` has more of the kind. Both go through the
   checks in `tests/families/every_path.py`: `python -m pytest -n0 -m "not slow" tests/families
   -k <model_type>`. `gguf_like="llama"` writes the rows of q and k in
   pairs, as `gguf_rope_interleaved=True` reads them. Then `python tests/table.py --slow` writes
   `tests/families.md`.
4. If llama.cpp knows it, `tests/families/test_gguf_writing.py` says whether `mrs quantize` writes
   its GGUF files right: then name it in `WRITTEN` of `architecture/gguf_layout.py`, and in
   `man/quantization.md`. Add it to `Architecture`, or an encoder to `EmbeddingArchitecture`, in
   `core/mrs/api/architectures.py`, and to the lists in `man/models.md`, which also says what
   families are compared with if it is not transformers. `python -m mrs_cli.docs` makes the pages.
5. Make it fast. Paths that compute several operations in one call, CUDA graphs and shares of layers
   name the fields that they know (`layers/known_fields.py`), and step aside, or refuse by name, for
   any other; a plan has room to spare. Once such a path computes the field, name it there:
   - native programs, and with them their planned bytes: `graph/layer_graph.py`, which names
     the fields, and `model/native_program.py`, which makes new operations of those that
     `kernels/cpu/native/` has
   - blocks of layers in Triton: `model/fusable.py`
   - CUDA graphs: `engine/decode_graph.py`
   - processes that share layers: `architecture/shardable.py`, and `with_shard` of the spec for
     what the shapes of slots do not cut (they cut a vector of a number for each head, and a gain
     of the output may multiply each part of the sum). A field of `Attention` is one of
     `EncoderAttention`, too
   - planned bytes: those of a new operation in `plan/memory/torch_activations.py`, if it makes
     values or needs room, or the formula in `memory.py` of a kind without a list; the field in
     `plan/memory/uncounted.py`
"""
