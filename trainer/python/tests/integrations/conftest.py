"""These tests need transformers, accelerate, peft and lightning: test_frameworks.py runs them where they are."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("transformers", "accelerate", "peft", "lightning"))) else ["test_*.py"]
