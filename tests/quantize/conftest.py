"""The modules that make tiny models."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / each) for each in ("families", "quantization", "uqff")]
