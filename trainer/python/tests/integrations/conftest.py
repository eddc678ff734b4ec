"""These tests need transformers and accelerate: tests/torch/test_frameworks.py runs them where they are."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("transformers") and find_spec("accelerate") else ["test_*.py"]
