"""What mistral.rs has and `mrs` has not: refused by name, with the way out."""

from __future__ import annotations

_TOOLS = "give tools in the requests to the server; the client runs them"
_GGML = "convert the file to GGUF with llama.cpp's convert_llama_ggml_to_gguf.py"
_MERGED = "mrs lora -m ID -a ADAPTER adds it to the weights"
_XLORA = "load one of its adapters: mrs lora -m ID -a ADAPTER"
_ORDER = "leave it out: the tensors of an adapter name its layers"
_SLICE = "load a checkpoint of that size"
_SEARCH = "let the client search, and put what it found into the messages"
_TOML = "give its settings as flags: mrs -m ID --isq q4k"
_DRAFT = "leave it out: the reply is the same"
_MEDIA = "use a text or a vision model"

#: Flags, and what to do instead.
FLAGS = {
    **dict.fromkeys(
        ("--enable-search", "--search-embedding-model", "--search-bert-model"), _SEARCH
    ),
    **dict.fromkeys(("--mcp-port", "--max-tool-rounds"), _TOOLS),
    **dict.fromkeys(
        ("--agent", "--enable-code-execution", "--enable-shell", "--skills-dir"), _TOOLS
    ),
    **dict.fromkeys(("--agent-permission", "--sandbox"), _TOOLS),
    "--legacy-lora": _MERGED,
    **dict.fromkeys(("--legacy-lora-order", "--order"), _ORDER),
    **dict.fromkeys(("-x", "--xlora", "--xlora-order", "--xlora-model-id"), _XLORA),
    "--tgt-non-granular-index": _XLORA,
    **dict.fromkeys(("--matformer-config-path", "--matformer-slice-name"), _SLICE),
    "--gqa": _GGML,
    **dict.fromkeys(("--mtp-model", "--mtp-n-predict"), _DRAFT),
    "--truncate-sequence": "the Python API has truncate_sequence=True",
    "--profile": "mrs fit finds the best quality that fits; --strategy fastest is for speed",
    "--emit-config": "mrs plan --dry-run --json > plan.json, and then mrs --plan plan.json",
    "--dac-model-id": _MEDIA,
    "--gen-model": _MEDIA,
}

#: Commands and selectors, and what to do instead.
COMMANDS = {
    **dict.fromkeys(("x-lora", "x-lora-gguf"), _XLORA),
    **dict.fromkeys(("ggml", "lora-ggml", "x-lora-ggml"), _GGML),
    **dict.fromkeys(("toml", "from-config"), _TOML),
    **dict.fromkeys(("diffusion", "speech"), _MEDIA),
    "uqff": "mrs plan --dry-run -f FILE.uqff says what a file has",
    "embedding": "serve a text model: mrs serve -m ID answers /v1/embeddings",
    "login": "hf auth login, or the variable HF_TOKEN",
    "update": "pip install --upgrade, as the program was installed",
    "uninstall": "pip uninstall mrs",
}


def way_out(name: str) -> str | None:
    """What to do instead of a flag or a command that only mistral.rs has."""
    if name.startswith("--sandbox"):
        name = "--sandbox"
    return FLAGS.get(name) or COMMANDS.get(name)
