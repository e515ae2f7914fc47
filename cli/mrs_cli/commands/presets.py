"""`mrs save`, and what `mrs show`, `mrs rm` and `mrs list` do with presets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mrs.errors import ExitCode, NotReadable, UsageError
from mrs.process.files import replace_file
from mrs_cli.environment import Environment
from mrs_cli.parsing.flags.command_flags import OutputFlags
from mrs_cli.parsing.presets import long_flags, preset_names, preset_path, read_preset
from mrs_cli.render.safe_text import json_text, printable

#: Others may read the file: it has no secrets.
_PERMISSIONS = 0o644


def save_preset(environment: Environment, name: str, given: Mapping[str, Any]) -> ExitCode:
    """Writes the flags that were given, by their long names. Raises UsageError."""
    path = preset_path(name)
    if not given:
        raise UsageError("no flags to save", hint=f"mrs save {name} -m ID --isq q4k")
    source = str(given.get("token-source", ""))
    if source.startswith("literal:"):
        raise UsageError(
            "--token-source literal: is a secret and is not saved",
            hint="name a variable or a file: env:NAME or path:FILE",
        )
    lines = [f"# mrs run @{path.stem}", *(f"{flag} = {_toml(v)}" for flag, v in given.items())]
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, ["".join(f"{line}\n" for line in lines).encode()], _PERMISSIONS)
    except OSError as error:
        raise NotReadable(f"cannot write {path}", where=error.strerror or "") from error
    done = "saved" if is_new else "replaced"
    environment.stdout.write(printable(f"{done} @{path.stem} in {path}") + "\n")
    return ExitCode.DONE


def given_flags(command: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the defaults, by the first long names of their flags."""
    given: dict[str, Any] = {}
    names = {parameter.name: flag for flag, parameter in reversed(long_flags(command).items())}
    for parameter in command.params:
        value = values.get(parameter.name)
        if parameter.name in names and value not in (None, parameter.default, [], ()):
            given[names[parameter.name]] = list(value) if isinstance(value, tuple) else value
    return given


def show_preset(environment: Environment, output: OutputFlags, name: str, save: Any) -> ExitCode:
    """Prints the file of a preset, or its flags as JSON; `save` is the command that writes it."""
    values = read_preset(name, long_flags(save))
    path = preset_path(name)
    if output.json:
        text = json_text({"name": path.stem, "path": str(path), "flags": values}) + "\n"
    else:
        text = printable(path.read_text(encoding="utf-8-sig"))
    environment.stdout.write(text)
    return ExitCode.DONE


def remove_preset(environment: Environment, name: str, save: Any) -> ExitCode:
    """Deletes a preset, also one that cannot be read."""
    path = preset_path(name)
    if not path.exists():
        read_preset(name, long_flags(save))  # raises its error
    try:
        path.unlink()
    except OSError as error:
        raise NotReadable(f"cannot delete {path}", where=error.strerror or "") from error
    environment.stdout.write(printable(f"deleted @{path.stem}") + "\n")
    return ExitCode.DONE


def preset_lines() -> list[str]:
    """A line with the names of all presets, if there are any."""
    names = preset_names()
    return [f"presets: {', '.join(f'@{name}' for name in names)}"] if names else []


def _toml(value: Any) -> str:
    """A text, a number, a truth or a list of them."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
