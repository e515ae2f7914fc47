"""In every process of `tests/sanitize.py`, the native library is the one that a variable names."""

import os

if "MRS_SANITIZED_LIBRARY" in os.environ:
    from pathlib import Path

    import mrs.kernels.cpu.library_file

    mrs.kernels.cpu.library_file.PATH = Path(os.environ["MRS_SANITIZED_LIBRARY"])
