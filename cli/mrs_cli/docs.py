"""The man page and the completions, made from the command tree: `python -m mrs_cli.docs`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrs.errors import ExitCode
from mrs_cli.app import command_tree
from mrs_cli.chat.command_table import COMMANDS
from mrs_cli.commands.completions import completion
from mrs_cli.parsing.command_tree import panels
from mrs_cli.parsing.flags.no_effect_flags import NO_EFFECT

EXIT_MEANINGS = {
    ExitCode.DONE: "done, also if the reader of a pipe closes it early",
    ExitCode.INTERNAL: "internal error (-vv shows where)",
    ExitCode.USAGE: "wrong usage",
    ExitCode.NOT_READABLE: "model or image not found or not readable",
    ExitCode.DOES_NOT_FIT: "the model does not fit the devices",
    ExitCode.UNSUPPORTED: "model, format or feature not supported",
    ExitCode.PEER_FAILED: "another process of the model has ended, failed or does not answer",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C or SIGTERM",
}
VARIABLES = {
    "HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE": "as the hub library reads them",
    "CUDA_VISIBLE_DEVICES": "as CUDA reads it",
    "MRS_CUDA_GRAPHS": "if off, decode steps on an NVIDIA GPU are not captured as CUDA graphs",
    "MRS_LOGICAL_DEVICES": "accelerators simulated on the CPU, such as cpu,cpu or cpu=2GiB",
    "MRS_API_KEY": "a key of the server, in addition to those of --api-key-file",
    "MRS_CLUSTER_SECRET, MRS_CLUSTER_SECRET_FILE": "the secret of a coordinator and its workers "
    "on other machines, or a file of mode 0600 with it; all processes need the same, also those "
    "that torchrun or Slurm start on several machines",
    "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT": "as torchrun sets them; also SLURM_PROCID and "
    "SLURM_NTASKS",
    "MISTRALRS_NO_NCCL": "if 1, --tensor-parallel-size gives each process some of the layers "
    "instead of a shard of each",
    "MISTRALRS_MN_LOCAL_WORLD_SIZE": "as --tensor-parallel-size",
    "MISTRALRS_MN_GLOBAL_WORLD_SIZE, RING_CONFIG": "several machines, as mistral.rs reads these "
    "and the further MISTRALRS_MN variables; each process gets some of the layers",
    "NO_COLOR": "if set and not empty, no colours are used",
    "TERM": "if dumb, no colours and no cursor movement are used",
}
FILES = {
    "~/.local/state/mrs/history": "the messages typed in chats, readable by their owner only; "
    "other platforms have their own folder for state",
    "~/.local/state/mrs/cluster-secret": "what a coordinator and workers of one user and machine "
    "prove to each other; made when first needed, readable by its owner only",
    "~/.local/state/mrs/chats/": "the last chats, for --continue; readable by their owner only",
}
COMPLETIONS = {"bash": "mrs.bash", "zsh": "_mrs", "fish": "mrs.fish"}


def documents() -> dict[str, str]:
    """Every generated file by its path in the repository."""
    scripts = {f"completions/{name}": completion(shell) for shell, name in COMPLETIONS.items()}
    return {"man/mrs.1": man_page(), **scripts}


def man_page() -> str:
    """mrs(1) in the man macros."""
    tree = command_tree()
    ctx = tree.context_class(tree, info_name="mrs", **tree.context_settings)
    usage = [f"mrs [FLAGS] {words} [FLAGS]" for words, _ in _commands(tree)]
    parts = [
        '.TH MRS 1 "" mrs "User Commands"',
        _section("NAME", "mrs \\- plan, load and run large language models"),
        _section("SYNOPSIS", "\n.br\n".join(_escaped(line) for line in usage)),
        _section("DESCRIPTION", _escaped(_description())),
        _section("FLAGS", _flags(tree, ctx)),
    ]
    for words, command in _commands(tree):
        sub = command.context_class(command, info_name=words, parent=ctx, **tree.context_settings)
        parts.append(_section(f"FLAGS AFTER {words.upper()}", _flags(command, sub)))
    chat = {f"\\{c.name} {c.argument}".rstrip(): c.help for c in COMMANDS}
    codes = {str(int(code)): meaning for code, meaning in EXIT_MEANINGS.items()}
    examples = re.findall(r"^  (mrs .*)$", tree.epilog, flags=re.MULTILINE)
    parts += [
        _section("CHAT COMMANDS", _definitions(chat)),
        _section("EXIT STATUS", _definitions(codes)),
        _section("ENVIRONMENT", _definitions(VARIABLES)),
        _section("FLAGS WITHOUT EFFECT", _definitions(NO_EFFECT)),
        _section("FILES", _definitions(FILES)),
        _section("EXAMPLES", ".nf\n" + "\n".join(map(_escaped, examples)) + "\n.fi"),
    ]
    return "\n".join(parts) + "\n"


def _commands(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every command with its words, without the selectors after another command."""
    for name, command in tree.commands.items():
        below = getattr(command, "commands", {})
        own = {f"{name} {sub}": each for sub, each in below.items() if sub not in tree.commands}
        yield from (own or {name: command}).items()


def _description() -> str:
    return (
        "mrs -m ID finds out the kind of a model, and takes all flags in any order. Or a selector "
        "names the kind: plain for text models in safetensors format, vision-plain (also "
        "multimodal-plain) for vision models, gguf for GGUF models. Then global flags go before "
        "the selector, and the selector's flags after it; flags about prompts, sampling and "
        "output may go before or after it. Replies go to standard output, everything else to "
        "standard error. Without --prompt, each line of standard input is a prompt; with -i, the "
        "lines are a conversation."
    )


def _flags(command: Any, ctx: Any) -> str:
    found = panels(command, ctx).items()
    return "\n".join(f".SS {heading}\n{_definitions(dict(flags))}" for heading, flags in found)


def _definitions(rows: dict[str, str]) -> str:
    return "\n".join(f".TP\n.B {_escaped(term)}\n{_escaped(text)}" for term, text in rows.items())


def _section(title: str, body: str) -> str:
    return f".SH {title}\n{body}"


def _escaped(text: str) -> str:
    """`text` for roff, with backslashes, minus signs and leading dots escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def main() -> None:
    """Writes the files below the folder given, or below the current one."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for path, text in documents().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
