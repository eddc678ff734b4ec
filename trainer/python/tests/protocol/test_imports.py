"""The control channel needs the standard library only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

_LIB = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["lull", "lull._protocol", "lull._agent", "lull.echo", "lull.doctor"])
def test_protocol_imports_without_torch(module: str) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        f"import {module}\n"
        "extra = {m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)\n"
        "extra = {m for m in extra if sys.modules[m] is not None and not m.startswith('__')}\n"
        "assert extra <= {'lull', 'sitecustomize', 'usercustomize'}, extra\n"
    )
    # -S and -E: nothing of the environment is on the path but the library under test.
    subprocess.run([sys.executable, "-S", "-E", "-W", "error", "-c", program], cwd=_LIB, check=True, timeout=60)
