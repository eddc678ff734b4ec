"""The tests of csrc/vmm.c share a rig."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
