"""`mrs completions SHELL`: the script with which a shell completes `mrs`."""

from __future__ import annotations

#: A new .zshrc has not started zsh's completions yet.
_ZSH_START = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
#: zsh loads the file as a function at its first use, which must complete, too.
_ZSH_FIRST_USE = '[[ $funcstack[1] == _mrs ]] && _mrs_completion "$@"'


def completion(shell: str) -> str:
    """The script with which `shell` asks `mrs` itself for completions."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="mrs", complete_var="_MRS_COMPLETE", shell=shell)
    if shell != "zsh":
        return f"{script}\n"
    tag, _, body = script.partition("\n")
    return f"{tag}\n{_ZSH_START}\n{body}\n{_ZSH_FIRST_USE}\n"
