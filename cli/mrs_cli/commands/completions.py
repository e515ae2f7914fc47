"""`mrs completions SHELL`: the script with which a shell completes `mrs`."""

from __future__ import annotations

_ZSH_FIRST_USE = '[[ $funcstack[1] == _mrs ]] && _mrs_completion "$@"\n'


def completion(shell: str) -> str:
    """The script with which `shell` asks `mrs` itself for completions."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="mrs", complete_var="_MRS_COMPLETE", shell=shell)
    # zsh loads the file as a function at its first use, which must complete, too.
    return f"{script}\n{_ZSH_FIRST_USE if shell == 'zsh' else ''}"
