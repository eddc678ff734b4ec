"""preloaded/ needs the native arena in its own process: test_preloaded.py runs it through lull.run."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore_glob = [] if os.environ.get("LULL_ARENA") else ["preloaded/*"]
