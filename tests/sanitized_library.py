"""A plugin of pytest: the native library is the one that a variable names."""

import os
from pathlib import Path

import mrs.kernels.library

mrs.kernels.library._LIBRARY = Path(os.environ["MRS_SANITIZED_LIBRARY"])
