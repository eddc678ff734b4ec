"""Log lines are shown under lull.run, and only where the script has no logging of its own."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from lull import run
from lull._show import show

_LIB = Path(__file__).parents[2]


def _stderr(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", program], cwd=_LIB, check=True, timeout=60, capture_output=True, text=True
    )
    return done.stderr


SHOW = "import logging, lull\nfrom lull._show import show\nshow({level!r})\nlog = logging.getLogger('lull')\n{more}"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("level", "more", "want"),
    [
        ("info", "log.debug('a'); log.info('b'); log.warning('c')", "lull: b\nlull: c\n"),
        ("info", "show('info'); log.info('b')", "lull: b\n"),
        ("", "log.info('b'); log.warning('c')", "c\n"),
        ("info", "logging.basicConfig(format='mine %(message)s'); log.info('b')", "mine b\n"),
        ("warning", "log.info('b')", ""),
    ],
)
def test_lines_are_shown_once_and_the_scripts_own_logging_comes_first(level: str, more: str, want: str) -> None:
    assert _stderr(SHOW.format(level=level, more=more)) == want


@pytest.mark.cpu
def test_no_level_changes_nothing() -> None:
    before = list(logging.getLogger("lull").handlers)
    show("")
    assert logging.getLogger("lull").handlers == before


@pytest.mark.cpu
def test_run_shows_info_unless_the_user_chose() -> None:
    env: dict[str, str] = {}
    run.environment(env, None)
    assert env["LULL_LOG"] == "info"
    env = {"LULL_LOG": "error"}
    run.environment(env, None)
    assert env["LULL_LOG"] == "error"
