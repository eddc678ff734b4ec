"""preloaded/ needs the native arena in its own process: test_preloaded.py runs it through lull.run."""

import os

collect_ignore_glob = [] if os.environ.get("LULL_ARENA") else ["preloaded/*"]
