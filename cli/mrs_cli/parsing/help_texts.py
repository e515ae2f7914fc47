"""The help of the commands."""

from __future__ import annotations

EXAMPLES = """\b
Examples:
  mrs -i -m demo
  mrs -m demo -P "What is a KV cache?"
  mrs -i --isq q4k plain -m meta-llama/Llama-3.3-70B-Instruct
  mrs -n "0:16;1:16" gguf -m FOLDER -f MODEL.gguf < prompts.txt
  mrs --port 1234 -m demo
  mrs plan --dry-run -m meta-llama/Llama-3.3-70B-Instruct
"""

SERVE_HELP = "Serve a model with the HTTP interfaces of OpenAI and Anthropic: mrs serve -m ID."

MODELS_HELP = "Serve several models, which are loaded when they are asked for."

SERVE_EXAMPLES = """\b
Examples:
  mrs serve -m demo
  mrs serve -p 8080 --isq q4k -m meta-llama/Llama-3.3-70B-Instruct
  mrs serve --serve-ip 0.0.0.0 --api-key-file KEYS gguf -m FOLDER -f FILE.gguf
  mrs serve --keep-alive 5m multi-model --config models.json
"""

PLAN_HELP = "Show how a model will use memory; without --dry-run, load it and measure."

#: The flags, and the kinds of models, that the help of a command lists if it accepts more, which
#: have no meaning for it.
LISTED = {
    "quantize": frozenset((
        "run", "plain", "isq", "topology", "organization", "imatrix", "calibration_file", "cpu",
        "output", "model_id", "arch", "hf_cache_path", "token_source", "json", "quiet", "verbose",
        "help",
    ))
}  # fmt: skip

QUANTIZE_HELP = "Write quantized weights to UQFF files: mrs quantize -m ID --isq q4k -o FOLDER."

BENCH_HELP = "Measure how fast a model is, and how much of the memory bandwidth it uses."

EMBED_HELP = "Make embeddings of texts: mrs embed -m ID TEXT."

EMBED_EXAMPLES = """\b
Examples:
  mrs embed -m sentence-transformers/all-MiniLM-L6-v2 "A text" "Another one"
  mrs embed -m google/embeddinggemma-300m --prompt-name query "Which one?"
  mrs embed -m Qwen/Qwen3-Embedding-0.6B --file texts.txt -o embeddings.npy
"""

RERANK_HELP = "Rank texts by how well they answer a question: mrs rerank -m ID --query Q TEXT."

RERANK_EXAMPLES = """\b
Examples:
  mrs rerank -m BAAI/bge-reranker-v2-m3 --query "Is Mars red?" "It is." "No."
  mrs rerank -m Qwen/Qwen3-Reranker-0.6B --query "Is Mars red?" --file texts
"""

CACHE_HELP = "Show and delete downloaded models."

DELETE_HELP = "Delete a model from the hub cache: mrs cache delete -m ID."

TUNE_HELP = "Find the best quantization that fits this machine: mrs tune -m ID."

DOCTOR_HELP = "Show what of the program works on this machine, and what to do about the rest."

COMPLETIONS_HELP = "Print the script with which a shell completes mrs: bash, zsh or fish."

WORKER_HELP = "Compute some layers of a model for mrs --wait-for N on another machine."

LIST_HELP = "List the models in the hub cache that mrs can run, with their sizes."

PLAN_EXAMPLES = """\b
Examples:
  mrs plan --dry-run
  mrs plan --dry-run -m ID --device cuda:0=24GiB --device cpu=64GiB
  mrs --isq q4k plan --dry-run --solve max-seq-len plain -m ID
  mrs plan --dry-run --json plain -m ID > plan.json
  mrs --plan plan.json -i plain -m ID
"""
