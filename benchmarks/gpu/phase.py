"""One phase in a process of its own: `python phase.py NAME OUT [--rehearse]`. Writes its JSON to OUT."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

from phases import PHASES
from place import place_of


def main() -> None:
    """Runs it; what it raises ends the process, and check.py says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(PHASES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="lull.attach: no native arena")
    found = PHASES[args.name](place_of(args.rehearse), args.rehearse)
    args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
