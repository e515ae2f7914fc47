"""The help of the commands: what each does, and examples of it."""

from __future__ import annotations

from dataclasses import dataclass

#: Headings under which the short help lists commands.
ASK, MODELS, PLAN = "Ask and serve", "Models", "Plan and measure"


@dataclass(frozen=True)
class CommandHelp:
    """`summary` is one sentence, `usage` what follows the name.

    The short help of the command above lists those with a `task`, and shows the first two examples.
    """

    summary: str
    task: str = ""
    usage: str = "-m MODEL [FLAGS]"
    examples: tuple[str, ...] = ()


ROOT = CommandHelp(
    "Plan, load and run large language models on whatever devices you have.",
    usage="[COMMAND] -m MODEL [FLAGS]",
    examples=(
        'mrs -m demo "What is a KV cache?"',
        "mrs chat -m meta-llama/Llama-3.2-1B-Instruct --isq q4k",
        'mrs -n "0:16;1:16" gguf -m FOLDER -f MODEL.gguf < prompt.txt',
        "mrs --port 1234 -m demo",
        "mrs plan --dry-run -m meta-llama/Llama-3.3-70B-Instruct",
    ),
)

#: The help of each command by its name, which is the same below another command.
COMMAND_HELP = {
    "run": CommandHelp(
        "Answer a question, or chat.",
        ASK,
        "MODEL [QUESTION] [FLAGS]",
        examples=(
            'mrs run demo "What is a KV cache?"',
            'git diff | mrs run demo "Summarize this"',
            "mrs run -m FOLDER -f MODEL.gguf < prompt.txt",
        ),
    ),
    "chat": CommandHelp("Chat in the terminal.", ASK, "MODEL [FLAGS]", ("mrs chat demo",)),
    "sessions": CommandHelp(
        "List your chats.", ASK, "[WORDS]... [FLAGS]", ("mrs sessions", "mrs sessions KV cache")
    ),
    "serve": CommandHelp(
        "Serve a model with OpenAI's and Anthropic's API.",
        ASK,
        examples=(
            "mrs serve -m demo",
            "mrs serve -p 8080 --isq q4k -m meta-llama/Llama-3.3-70B-Instruct",
            "mrs serve --serve-ip 0.0.0.0 --api-key-file KEYS gguf -m FOLDER -f FILE.gguf",
            "mrs serve --keep-alive 5m multi-model --config models.json",
        ),
    ),
    "batch": CommandHelp(
        "Answer a file of requests, and go on where it was stopped.",
        ASK,
        "MODEL FILE.jsonl [FLAGS]",
        (
            "mrs batch demo requests.jsonl",
            "mrs batch -m Qwen/Qwen3-8B --isq q4k requests.jsonl --output answers.jsonl",
        ),
    ),
    "embed": CommandHelp(
        "Turn texts into embeddings.",
        ASK,
        "-m MODEL [FLAGS] [TEXT]...",
        (
            'mrs embed -m sentence-transformers/all-MiniLM-L6-v2 "A text" "Another one"',
            "mrs embed -m Qwen/Qwen3-Embedding-0.6B --file texts.txt --output texts.npy",
            'mrs embed -m google/embeddinggemma-300m --prompt-name query "Which one?"',
        ),
    ),
    "rerank": CommandHelp(
        "Rank texts by how well they answer a question.",
        "",
        "-m MODEL --query TEXT [FLAGS] [TEXT]...",
        (
            'mrs rerank -m BAAI/bge-reranker-v2-m3 --query "Is Mars red?" "It is." "No."',
            'mrs rerank -m Qwen/Qwen3-Reranker-0.6B --query "Is Mars red?" --file texts',
        ),
    ),
    "classify": CommandHelp(
        "Say which class texts belong to.",
        "",
        "-m MODEL [FLAGS] [TEXT]...",
        (
            'mrs classify -m SamLowe/roberta-base-go_emotions "Great!"',
            'mrs classify -m cross-encoder/nli-deberta-v3-base --text-pair "It rains" "Wet"',
        ),
    ),
    "launch": CommandHelp(
        "Start a coding agent with a model of yours.",
        ASK,
        "TOOL -m MODEL [FLAGS] [-- ARGUMENTS]",
        (
            "mrs launch claude -m Qwen/Qwen3-Coder-30B-A3B-Instruct --isq q4k",
            "mrs launch codex -m Qwen/Qwen3-8B -- exec 'Explain this folder'",
        ),
    ),
    "plan": CommandHelp(
        "Show where every byte goes, and how fast it is.",
        PLAN,
        examples=(
            "mrs plan --dry-run -m meta-llama/Llama-3.3-70B-Instruct",
            "mrs plan -m ID --device cuda:0=24GiB --device cpu=64GiB",
            "mrs plan --dry-run --json plain -m ID > plan.json",
            "mrs --plan plan.json -i plain -m ID",
        ),
    ),
    "fit": CommandHelp(
        "Show which quantizations fit this machine or others, and how fast they are.",
        PLAN,
        examples=(
            "mrs fit -m meta-llama/Llama-3.3-70B-Instruct",
            'mrs fit -m ID --on "RTX 4090" --on "2x RTX 3090 + cpu=64GiB"',
        ),
    ),
    "tune": CommandHelp(
        "The old name of mrs fit.",
        examples=("mrs fit -m meta-llama/Llama-3.1-8B-Instruct",),
    ),
    "bench": CommandHelp(
        "Measure how fast a model is on this machine.",
        PLAN,
        examples=("mrs bench -m demo", "mrs bench -p 128 -g 32 gguf -m demo"),
    ),
    "eval": CommandHelp(
        "Measure how much a quantization loses.",
        PLAN,
        examples=(
            "mrs eval -m meta-llama/Llama-3.2-1B-Instruct --isq q4k,q5k,q6k",
            "mrs eval -m FOLDER -f MODEL.gguf --text wiki.test.raw --plot loss.svg",
        ),
    ),
    "doctor": CommandHelp("Check this machine and suggest fixes.", PLAN, "[FLAGS]"),
    "pull": CommandHelp(
        "Download a model.", MODELS, "MODEL [FLAGS]", ("mrs pull Qwen/Qwen3-0.6B",)
    ),
    "show": CommandHelp(
        "Show what a model is and what it needs, or a preset.",
        MODELS,
        "MODEL [FLAGS]",
        ("mrs show demo", "mrs show bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
    ),
    "save": CommandHelp(
        "Save flags under a name: @NAME stands for them.",
        MODELS,
        "NAME -m MODEL [FLAGS]",
        (
            "mrs save code -m Qwen/Qwen3-8B --isq q4k --temperature 0.2",
            'mrs run @code "Reverse a list in Rust"',
        ),
    ),
    "ps": CommandHelp("List the servers that you run.", ASK, "[FLAGS]"),
    "stop": CommandHelp("Stop a server.", ASK, "[PID|MODEL|all]..."),
    "route": CommandHelp(
        "Spread requests over several servers of one model.",
        "",
        "URL [URL]... [FLAGS]",
        ("mrs route http://10.0.0.5:1234 http://10.0.0.6:1234",),
    ),
    "rm": CommandHelp("Delete a downloaded model, or a preset.", MODELS, "MODEL [FLAGS]"),
    "quantize": CommandHelp(
        "Write a model, quantized, to a GGUF file or to UQFF files.",
        "",
        "-m MODEL --isq FORMAT -o FILE.gguf|FOLDER [FLAGS]",
        (
            "mrs quantize -m meta-llama/Llama-3.2-1B-Instruct --isq Q4_K_M -o llama.gguf",
            "mrs quantize -m meta-llama/Llama-3.2-1B-Instruct --isq q4k -o FOLDER",
        ),
    ),
    "cache": CommandHelp("Show and delete downloaded models.", "", "list|delete [FLAGS]"),
    "list": CommandHelp(
        "List the downloaded models with their sizes, and the presets.", MODELS, "[FLAGS]"
    ),
    "delete": CommandHelp(
        "Delete a downloaded model.", MODELS, "-m MODEL [FLAGS]", ("mrs cache delete -m ID",)
    ),
    "plain": CommandHelp("A text model in safetensors format."),
    "vision-plain": CommandHelp("A vision model in safetensors format."),
    "gguf": CommandHelp("A model in GGUF format."),
    "lora": CommandHelp(
        "A text model with LoRA adapters in its weights.", "", "-m MODEL -a ADAPTER [FLAGS]"
    ),
    "lora-gguf": CommandHelp(
        "A GGUF model with LoRA adapters in its weights.", "", "-m MODEL -a ADAPTER [FLAGS]"
    ),
    "multi-model": CommandHelp(
        "Serve several models, each loaded at its first request.",
        "",
        "--config FILE [FLAGS]",
        ("mrs serve --keep-alive 5m multi-model --config models.json",),
    ),
    "worker": CommandHelp(
        "Compute some layers of a model for mrs --wait-for N on another machine.",
        "",
        "--join HOST:PORT [FLAGS]",
        ("mrs worker --join 192.168.1.10:9000",),
    ),
    "completions": CommandHelp(
        "Print the script with which a shell completes mrs.",
        "",
        "bash|zsh|fish",
        (
            "mrs completions bash >> ~/.bashrc",
            "mrs completions zsh >> ~/.zshrc",
            "mrs completions fish > ~/.config/fish/completions/mrs.fish",
        ),
    ),
}

#: The flags, and the kinds of models, that the help of a command lists if it accepts more, which
#: have no meaning for it.
LISTED = {
    "quantize": frozenset((
        "run", "plain", "gguf", "isq", "dtype", "topology", "organization", "imatrix",
        "calibration_file", "cpu", "output", "bits", "size", "fit", "max_shard_size",
        "model_id", "arch", "hf_cache_path", "token_source", "json", "quiet", "verbose", "help",
    ))
}  # fmt: skip
