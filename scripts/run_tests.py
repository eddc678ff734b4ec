"""Run Lull's tests, Go and Python, and end with one line that counts them: "N passed, N failed, N skipped".

python3 scripts/run_tests.py all      every test: Go with the race detector, Python, then real servers end to end
python3 scripts/run_tests.py fast     no race detector, no real servers, of the Python tests those that need no torch

Needs nothing but the standard library and `go`; it makes the Python environments itself. With CI=true a skipped test
is a failed one; elsewhere skipped tests are listed with their reasons.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
E2E = "/e2e"
# Where Python tests lie, and the environment that they need. A test of the repository holds this list complete.
PYTEST_ROOTS = {"scripts": "base", "trainer/python": "base", "engine/vllm_plugin": "full"}
# What `fast` runs of them: tests that need no torch.
FAST_PYTEST = {"scripts": [], "trainer/python": ["tests/protocol"]}
HEARTBEAT_SECONDS = 30.0


@dataclass
class Tally:
    """What became of the tests; failed and skipped ones by name."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def say(text: str) -> None:
    """Print a line at once: a log that is read while it grows."""
    print(text, flush=True)


def short(package: str) -> str:
    """A package's path inside the module."""
    return package.removeprefix("github.com/lull-project/lull/")


def environment_python(kind: str) -> str:
    """The python of `scripts/pyenv KIND`, made if need be; its progress goes to our stderr."""
    out = subprocess.run([str(ROOT / "scripts/pyenv"), kind], stdout=subprocess.PIPE, text=True, check=True)
    return out.stdout.strip().splitlines()[-1]


class GoRun:
    """One `go test -json`: prints a line a package, the output of what fails, and a sign of life in between."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._output: dict[tuple[str, str], list[str]] = {}
        self._running: dict[str, float] = {}
        self._lock = threading.Lock()

    def run(self, arguments: list[str], env: Mapping[str, str]) -> None:
        command = ["go", "test", "-json", *arguments]
        say(f"== {' '.join(command[:6])}{' ...' if len(command) > 6 else ''}")
        done = threading.Event()
        beat = threading.Thread(target=self._beat, args=(done,), daemon=True)
        beat.start()
        before = len(self._tally.failed)
        with subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._line(line)
        done.set()
        beat.join()
        if process.returncode != 0 and len(self._tally.failed) == before:
            self._tally.failed.append(f"go test {' '.join(arguments)}: exit status {process.returncode}")

    def _line(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            say(line.rstrip())
            return
        package, test = event.get("Package", event.get("ImportPath", "")), event.get("Test", "")
        action = event["Action"]
        if action == "build-output":
            say(event["Output"].rstrip())
        elif action == "output":
            self._output.setdefault((package, test), []).append(event["Output"])
        elif action == "start":
            with self._lock:
                self._running[package] = time.monotonic()
        elif action in ("pass", "fail", "skip"):
            if test:
                self._test(package, test, action)
            else:
                self._package(package, action, float(event.get("Elapsed", 0.0)))

    def _test(self, package: str, test: str, action: str) -> None:
        name = f"{short(package)}.{test}"
        output = self._output.pop((package, test), [])
        if action == "pass":
            self._tally.passed += 1
        elif action == "fail":
            self._tally.failed.append(name)
            say(f"FAIL {name}\n{''.join(output).rstrip()}")
        else:
            reason = " ".join(o.strip() for o in output if not o.startswith(("=== ", "--- ")))
            self._tally.skipped.append(f"{name}: {reason}")

    def _package(self, package: str, action: str, took: float) -> None:
        with self._lock:
            self._running.pop(package, None)
        output = "".join(self._output.pop((package, ""), []))
        if action == "fail":
            if not any(f.startswith(f"{short(package)}.") for f in self._tally.failed):
                self._tally.failed.append(short(package))  # it did not build, or ended outside any test
            say(output.rstrip())
        elif action == "pass":
            say(f"ok   {package} {took:.1f}s")

    def _beat(self, done: threading.Event) -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            with self._lock:
                now = time.monotonic()
                running = [f"{Path(p).name} {now - t:.0f}s" for p, t in self._running.items()]
            say(f"     running: {', '.join(running) or 'the compiler'}")


def run_pytest(root: str, python: str, paths: list[str], env: Mapping[str, str], tally: Tally) -> None:
    """Run pytest in a folder and count by its own report. Tests that need a GPU are left out by name, not skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-m", "not gpu", f"--junitxml={report}", *paths]
        say(f"== {root}: pytest {' '.join(paths)}")
        code = subprocess.run(command, cwd=ROOT / root, env=dict(env), check=False).returncode
        cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    before = len(tally.failed)
    for case in cases:
        name = f"{root}/{case.get('classname')}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed.append(name)
        elif skipped is not None and skipped.get("type") != "pytest.xfail":
            tally.skipped.append(f"{name}: {skipped.get('message')}")
        else:
            tally.passed += 1
    if code != 0 and len(tally.failed) == before:
        tally.failed.append(f"{root}: pytest exit status {code}" + (" (it found no tests)" if code == 5 else ""))


def packages() -> Iterator[str]:
    """Every Go package of the module."""
    out = subprocess.run(["go", "list", "./..."], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    yield from out.stdout.split()


def test_environment(kinds: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment of the tests, and the pythons by kind. `python3` inside it is the one with torch."""
    pythons = {kind: environment_python(kind) for kind in kinds}
    env = dict(os.environ)
    env["LULL_TEST_PYTHON"] = pythons["base"]
    env["PATH"] = f"{Path(pythons['base']).parent}{os.pathsep}{env['PATH']}"
    for kind in ("full", "triton"):
        if kind in pythons:
            env[f"LULL_TEST_PYTHON_{kind.upper()}"] = pythons[kind]
    return env, pythons


def run_all(tally: Tally) -> None:
    """Everything. Real servers come last and alone, so that nothing else disturbs their clocks."""
    env, pythons = test_environment(["base", "full", "triton"])
    everything = list(packages())
    rest = [p for p in everything if not p.endswith(E2E)]
    if shutil.which("cc"):
        GoRun(tally).run(["-race", "-timeout=20m", *rest], env)
    else:
        tally.skipped.append("the race detector: there is no C compiler; install gcc and libc6-dev")
        GoRun(tally).run(["-timeout=20m", *rest], env)
    for root, kind in PYTEST_ROOTS.items():
        run_pytest(root, pythons[kind], [], env, tally)
    GoRun(tally).run(["-count=1", "-timeout=20m", *(p for p in everything if p.endswith(E2E))], env)


def run_fast(tally: Tally) -> None:
    """What a change in Go or in the protocol is checked with in between."""
    env, pythons = test_environment(["base"])
    GoRun(tally).run(["-short", *(p for p in packages() if not p.endswith(E2E))], env)
    for root, paths in FAST_PYTEST.items():
        run_pytest(root, pythons[PYTEST_ROOTS[root]], paths, env, tally)


def report(tally: Tally) -> int:
    """Print what failed and was skipped, and the closing line; the exit status."""
    for name in tally.skipped:
        say(f"SKIP {name}")
    if tally.skipped and os.environ.get("CI") == "true":
        say("run_tests: with CI=true a skipped test counts as failed")
        tally.failed += tally.skipped
        tally.skipped = []
    for name in tally.failed:
        say(f"FAILED {name}")
    say(f"{tally.passed} passed, {len(tally.failed)} failed, {len(tally.skipped)} skipped")
    return 1 if tally.failed or tally.passed == 0 else 0


def main(arguments: list[str]) -> int:
    runs = {"all": run_all, "fast": run_fast}
    if len(arguments) != 1 or arguments[0] not in runs:
        say(f"run_tests: got {arguments}, want one of {sorted(runs)}")
        return 2
    tally = Tally()
    runs[arguments[0]](tally)
    return report(tally)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
