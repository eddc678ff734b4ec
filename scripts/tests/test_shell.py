"""What pyenv and sysdeps say when they cannot do what is asked."""

import os
import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A script's exit status and what it said."""
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})


def programs(folder: Path, *names: str) -> str:
    """A PATH with a few programs only: no apt-get, so that nothing is installed."""
    folder.mkdir()
    for name in names:
        found = next(p for d in os.environ["PATH"].split(":") if (p := Path(d) / name).exists())
        (folder / name).symlink_to(found)
    return str(folder)


def test_pyenv_names_the_sets_it_knows() -> None:
    got = run(str(SCRIPTS / "pyenv"), "everything")
    said = 'pyenv: got "everything", want base, full, clients, convergence, triton or lock\n'
    assert (got.returncode, got.stdout, got.stderr) == (1, "", said)


def test_pyenv_says_what_to_install_without_a_python(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", "bash", "dirname", "env", "id", "sh", "cat")
    got = run("bash", str(SCRIPTS / "pyenv"), "base", PATH=path, LULL_PYTHON="no-python-here")
    assert got.returncode == 1
    assert got.stdout == ""
    assert "sysdeps: missing python3 python3-venv; install: python3 python3-venv" in got.stderr


def test_sysdeps_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", "bash", "id", "env")
    got = run("bash", str(SCRIPTS / "sysdeps"), "bash", "no-such-program", "gcc", PATH=path)
    assert got.returncode == 1
    assert got.stderr == "sysdeps: missing no-such-program gcc; install: no-such-program gcc\n"


def test_sysdeps_is_silent_when_all_is_there() -> None:
    got = run(str(SCRIPTS / "sysdeps"), "bash", "env")
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")


def test_pyenv_gives_the_same_python_to_everyone_at_once() -> None:
    """With a finished environment in the cache: nothing is built, two runs answer alike and name one path only."""
    command = [str(SCRIPTS / "pyenv"), "base"]
    first, second = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    answers = [p.communicate()[0].splitlines() for p in (first, second)]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 1
    assert Path(answers[0][0]).exists()
