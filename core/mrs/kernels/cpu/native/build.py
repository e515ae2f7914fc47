"""The build hook that puts the native library and the man pages into what is installed."""

from __future__ import annotations

import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("core/mrs/kernels/cpu/native")


class NativeLibraryHook(BuildHookInterface[Any]):
    """Compiles before the wheel is made. Without a compiler the wheel is pure Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        for page in sorted(Path(self.root, "man").glob("*.[17]")):
            build_data["shared_data"][str(page)] = f"share/man/man{page.suffix[1:]}/{page.name}"
        if sys.platform == "win32":  # its wheel is for it alone: others compile
            build_data["tag"] = _tag(sysconfig.get_platform())
        native = runpy.run_path(str(Path(self.root, _FOLDER, "compile.py")))
        try:
            library = native["compile_library"]()
        except native["CannotCompile"] as problem:
            self.app.display_warning(
                f"mrs: native kernels left out, the slower torch kernels will be used: {problem}"
            )
            return
        build_data["artifacts"].append(str(_FOLDER / library.name))
        build_data["pure_python"] = False
        # `CC` may compile for another processor than that of this machine.
        processor = native["target_processor"]() if sys.platform == "linux" else None
        build_data["tag"] = _tag(f"linux-{processor}" if processor else sysconfig.get_platform())


def _tag(system: str) -> str:
    return f"py3-none-{system.replace('-', '_').replace('.', '_')}"
