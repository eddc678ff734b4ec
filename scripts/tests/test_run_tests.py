"""What run_tests.py makes of the output of `go test -json` and of pytest's report."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
import run_tests

PACKAGE = "github.com/lull-project/lull/engine"


def feed(events: list[dict[str, object]]) -> run_tests.Tally:
    """The tally after a few lines of `go test -json`."""
    tally = run_tests.Tally()
    run = run_tests.GoRun(tally)
    for event in events:
        run._line(json.dumps({"Package": PACKAGE, **event}))
    return tally


def test_passed_failed_and_skipped_tests_are_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    tally = feed(
        [
            {"Action": "start"},
            {"Action": "pass", "Test": "TestA"},
            {"Action": "output", "Test": "TestB", "Output": "    b_test.go:1: got 1, want 2\n"},
            {"Action": "fail", "Test": "TestB"},
            {"Action": "output", "Test": "TestC", "Output": "=== RUN   TestC\n"},
            {"Action": "output", "Test": "TestC", "Output": "    c_test.go:9: install gcc\n"},
            {"Action": "skip", "Test": "TestC"},
            {"Action": "fail", "Elapsed": 1.0},
        ]
    )
    assert (tally.passed, tally.failed) == (1, ["engine.TestB"])
    assert tally.skipped == ["engine.TestC: c_test.go:9: install gcc"]
    assert "got 1, want 2" in capsys.readouterr().out


def test_a_package_that_does_not_build_is_a_failure() -> None:
    tally = feed([{"Action": "start"}, {"Action": "output", "Output": "FAIL [build failed]\n"}, {"Action": "fail"}])
    assert tally.failed == ["engine"]


def test_a_package_without_tests_is_nothing() -> None:
    tally = feed([{"Action": "start"}, {"Action": "skip"}])
    assert (tally.passed, tally.failed, tally.skipped) == (0, [], [])


def test_a_line_that_is_no_json_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run_tests.GoRun(run_tests.Tally())._line("go: downloading example.com v1\n")
    assert capsys.readouterr().out == "go: downloading example.com v1\n"


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_skipped_test_fails_in_ci_only(
    ci: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    assert run_tests.report(run_tests.Tally(passed=2, skipped=["engine.TestC: install gcc"])) == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("2 passed, 1 failed, 0 skipped" if ci else "2 passed, 0 failed, 1 skipped")


def test_no_test_at_all_is_a_failure() -> None:
    assert run_tests.report(run_tests.Tally()) == 1


def test_pytest_is_counted_by_its_own_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.xfail\n"
        "def test_known(): assert False\n"
        "def test_not_here(): pytest.skip('install redis-server')\n"
    )
    tally = run_tests.Tally()
    run_tests.run_pytest(str(tmp_path), sys.executable, [], os.environ, tally)
    assert tally.passed == 2
    assert [f.split("::")[-1] for f in tally.failed] == ["test_bad"]
    assert tally.skipped[0].endswith("test_not_here: install redis-server")


def test_a_folder_without_tests_is_a_failure(tmp_path: Path) -> None:
    tally = run_tests.Tally()
    run_tests.run_pytest(str(tmp_path), sys.executable, [], os.environ, tally)
    assert tally.failed == [f"{tmp_path}: pytest exit status 5 (it found no tests)"]


def test_an_unknown_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tests.main(["everything"]) == 2
    assert capsys.readouterr().out == "run_tests: got ['everything'], want one of ['all', 'fast']\n"
