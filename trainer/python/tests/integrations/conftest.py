"""These tests need transformers, accelerate and peft: tests/torch/test_frameworks.py runs them where they are."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("transformers", "accelerate", "peft"))) else ["test_*.py"]
