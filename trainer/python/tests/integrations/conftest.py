"""These tests need transformers, accelerate, peft and lightning: test_frameworks.py runs them where they are."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore_glob = [] if all(map(find_spec, ("transformers", "accelerate", "peft", "lightning"))) else ["test_*.py"]
