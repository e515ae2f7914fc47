"""Section 1 of the man pages and the completions, made from the command tree."""

from __future__ import annotations

from typing import Any

from mrs.errors import ExitCode
from mrs_cli.app import command_tree
from mrs_cli.chat.command_table import COMMANDS
from mrs_cli.docs.roff import definitions, escaped, page, references
from mrs_cli.parsing.command_tree import panels, usual_flags
from mrs_cli.parsing.flags.no_effect_flags import NO_EFFECT
from mrs_cli.parsing.help_texts import COMMAND_HELP, ROOT, CommandHelp
from mrs_cli.parsing.own_variables import OWN_VARIABLES
from mrs_cli.parsing.selectors import SELECTORS
from mrs_cli.parsing.spellings import DEFAULT_COMMAND

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
    **OWN_VARIABLES,
    "MRS_CONFIG, MRS_PORT, MRS_ISQ, ...": "any flag: the name of its long form in capitals with _ "
    "for -. A flag that may be given several times takes a list as in TOML, one without a value "
    "true or false. Flags come before variables, and variables before the file of --config",
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
    "~/.config/mrs/presets/": "the presets of mrs save, a TOML file each",
    "~/.local/state/mrs/servers/": "what mrs ps lists, and the sockets on which servers answer "
    "runs of their user (--attach)",
    "~/.local/state/mrs/launch.log": "lines of the server of the last mrs launch",
    "~/.local/state/mrs/chats/": "the sessions of chats, which stay until you "
    "delete them; readable by their owner only",
}
SELECTOR_NAMES = {each.name for each in SELECTORS}


def command_pages(manual: list[str]) -> dict[str, str]:
    """Each page by its name: mrs(1), which refers to the pages of the manual, and the commands'."""
    tree = command_tree()
    ctx = tree.context_class(tree, info_name="mrs", **tree.context_settings)
    commands = {f"mrs-{name}": _command_page(name, tree, ctx) for name in tree.commands}
    return {"mrs": _root_page(tree, ctx, manual), **commands}


def _root_page(tree: Any, ctx: Any, manual: list[str]) -> str:
    groups = (*tree.default_groups, *tree.callback.groups)
    summaries = {f"mrs-{name}(1)": COMMAND_HELP[name].summary for name in tree.commands}
    codes = {str(int(code)): meaning for code, meaning in EXIT_MEANINGS.items()}
    return _page(
        "mrs",
        "plan, load and run large language models",
        f"mrs {ROOT.usage}",
        {
            "DESCRIPTION": escaped(_description()),
            "COMMANDS": definitions(summaries),
            "USUAL FLAGS": definitions(dict(usual_flags(groups, ctx))),
            "EXIT STATUS": definitions(codes),
            "ENVIRONMENT": definitions(VARIABLES),
            "FILES": definitions(FILES),
            "EXAMPLES": _examples(ROOT),
            "SEE ALSO": references([(name, 7) for name in manual]),
        },
    )


def _command_page(name: str, tree: Any, ctx: Any) -> str:
    command, texts = tree.commands[name], COMMAND_HELP[name]
    sub = command.context_class(command, info_name=name, parent=ctx, **tree.context_settings)
    sections = {"FLAGS": _flags(command, sub)}
    for below, each in command.commands.items():
        if below not in SELECTOR_NAMES:
            deeper = each.context_class(each, info_name=below, parent=sub, **tree.context_settings)
            sections[f"FLAGS AFTER {name} {below}".upper()] = _flags(each, deeper)
    if name == DEFAULT_COMMAND:
        chat = {f"\\{c.name} {c.argument}".rstrip(): c.help for c in COMMANDS}
        sections["CHAT COMMANDS"] = definitions(chat)
        sections["FLAGS WITHOUT EFFECT"] = definitions(NO_EFFECT)
    if texts.examples:
        sections["EXAMPLES"] = _examples(texts)
    sections["SEE ALSO"] = references([("mrs", 1)])
    summary = texts.summary.rstrip(".")
    usage = f"mrs {name} {texts.usage}"
    return _page(f"mrs-{name}", summary[:1].lower() + summary[1:], usage, sections)


def _page(name: str, summary: str, usage: str, sections: dict[str, str]) -> str:
    return page(name, 1, "User Commands", summary, {"SYNOPSIS": escaped(usage), **sections})


def _examples(texts: CommandHelp) -> str:
    return ".nf\n" + "\n".join(map(escaped, texts.examples)) + "\n.fi"


def _description() -> str:
    return (
        "mrs -m ID finds out the kind of a model, and takes all flags in any order. Or a selector "
        "names the kind: plain for text models in safetensors format, vision-plain (also "
        "multimodal-plain) for vision models, gguf for GGUF models. Then global flags go before "
        "the selector, and the selector's flags after it; flags about prompts, sampling and "
        "output may go before or after it. Replies go to standard output, everything else to "
        "standard error. What is piped in follows the question, or is the prompt if there is "
        "none; with --each-line each line is a prompt, and with -i the lines are a conversation."
    )


def _flags(command: Any, ctx: Any) -> str:
    found = panels(command, ctx).items()
    return "\n".join(f".SS {heading}\n{definitions(dict(flags))}" for heading, flags in found)
