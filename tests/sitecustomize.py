"""In every process of `tests/sanitize.py`, the native library is the one that a variable names."""

import os

if "SANITIZED_MRS_LIBRARY" in os.environ:
    from pathlib import Path

    import mrs.kernels.cpu.library_file

    mrs.kernels.cpu.library_file.PATH = Path(os.environ["SANITIZED_MRS_LIBRARY"])
