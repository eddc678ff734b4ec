"""The parts of benchmarks/clients that need no model server: what is read of clients and of Lull, and the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/clients")]

import behind  # noqa: E402
import clients  # noqa: E402
import cores  # noqa: E402
import verdict  # noqa: E402


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def job(work: Path, requests: int = 2) -> clients.Job:
    return clients.Job("http://127.0.0.1:1", "tiny", work, work, requests, 1, 8, 3, 7, [97, 98])


VLLM = """
import json, pathlib, sys
at = lambda name: sys.argv[sys.argv.index(name) + 1]
assert json.loads(at("--extra-body")) == {"allowed_token_ids": [97, 98]}, sys.argv
pathlib.Path(at("--result-dir"), at("--result-filename")).write_text(json.dumps(
    {"completed": 2, "ttfts": [0.010, 0.030], "itls": [[0.001, 0.002], [0.003]]}))
"""


def test_vllm_bench_gives_each_requests_first_token_and_every_gap(tmp_path: Path) -> None:
    got = clients.vllm_bench(program(tmp_path / "python", VLLM))(job(tmp_path))
    assert got == {
        "ttft": {"n": 2, "p50": 20.0, "p99": pytest.approx(29.8), "max": 30.0},
        "tbt": {"n": 3, "p50": 2.0, "p99": pytest.approx(2.98), "max": 3.0},
    }


def test_requests_that_a_client_did_not_complete_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="vllm bench serve: 2 of 3 requests completed"):
        clients.vllm_bench(program(tmp_path / "python", VLLM))(job(tmp_path, requests=3))


AIPERF = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--output-artifact-dir") + 1], "some-run")
out.mkdir(parents=True)
metrics = lambda first, gaps: {"time_to_first_token": {"value": first}, "inter_chunk_latency": {"value": gaps}}
failed = {"metrics": {}, "error": {"code": 1}}
in_one = {"metrics": {"time_to_first_token": {"value": 20.0}}}
records = [{"metrics": metrics(10.0, [1.0, 2.0])}, {"metrics": metrics(30.0, [3.0])}, in_one, failed]
(out / "profile_export.jsonl").write_text("".join(json.dumps(r) + "\\n" for r in records))
"""


def test_aiperf_gives_the_same_of_its_records(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin/aiperf", AIPERF)
    got = clients.aiperf(tmp_path / "bin/python")(job(tmp_path, requests=3))
    assert (got["ttft"]["n"], got["ttft"]["p50"], got["tbt"]["n"], got["tbt"]["max"]) == (3, 20.0, 3, 3.0)


def test_a_client_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    broken = program(tmp_path / "python", "print('no such flag', flush=True); raise SystemExit(3)")
    with pytest.raises(RuntimeError, match=r"vllm bench serve: exit status 3, want 0; it said last:\nno such flag$"):
        clients.vllm_bench(broken)(job(tmp_path))


LULL = """
import http.server, json, signal, sys, threading
state = {"slo": [{"objectives": [
    {"objective": "ttft", "latency": {"n": 4, "p50_s": 0.02, "p99_s": 0.03, "max_s": 0.04}},
    {"objective": "success"}]}]}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(state).encode())
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
address = f"127.0.0.1:{server.server_port}"
assert "60000ms" in open(sys.argv[sys.argv.index("--config") + 1]).read()
print(json.dumps({"listening": address, "admin": address}), flush=True)
server.serve_forever()
"""


def test_what_lull_saw_is_read_from_its_state(tmp_path: Path) -> None:
    lull = behind.Lull(program(tmp_path / "lull", LULL), "http://127.0.0.1:1", tmp_path / "work")
    try:
        assert lull.seen() == {"ttft": {"n": 4, "p50": 20.0, "p99": 30.0, "max": 40.0}}
    finally:
        lull.close()


def test_a_lull_that_does_not_start_is_named_with_what_it_said(tmp_path: Path) -> None:
    broken = program(tmp_path / "lull", "raise SystemExit('listen: taken')")
    with pytest.raises(RuntimeError, match=r"lull serve ended before it listened; it said:\nlisten: taken\n$"):
        behind.Lull(broken, "http://127.0.0.1:1", tmp_path / "work")


@pytest.mark.parametrize(
    ("theirs", "ours", "alike"), [(10, 12, True), (10, 12.1, False), (100, 95, True), (100, 94.9, False)]
)
def test_figures_agree_within_two_milliseconds_or_a_twentieth(theirs: float, ours: float, alike: bool) -> None:
    assert verdict.agree(theirs, ours) is alike


def test_the_verdict_is_that_of_the_run_farthest_off() -> None:
    def run(ours: float) -> dict[str, object]:
        same = {"n": 1.0, "p50": 10.0, "p99": 10.0, "max": 10.0}
        return {
            "client": "c",
            "theirs": {"ttft": same, "tbt": same},
            "lull": {"ttft": {**same, "p99": ours}, "tbt": same},
        }

    found = verdict.bars([run(11.0), run(15.0)])
    assert [(bar.name, bar.met) for bar in found] == [
        ("c, ttft P50", True), ("c, ttft P99", False), ("c, tbt P50", True), ("c, tbt P99", True),
    ]  # fmt: skip
    assert (
        found[1].line()
        == "MISSED  c, ttft P99: 10.00 and 15.00 ms by Lull (farthest of 2 runs) (want within 2 ms or 5%)"
    )
    json.dumps([bar.fields() for bar in found])


@pytest.mark.parametrize(
    ("all_of_them", "servers", "clients_own"),
    [({3}, {3}, {3}), ({0, 1}, {0}, {1}), ({0, 2, 5}, {0, 2}, {5}), ({0, 1, 2, 3}, {0, 1}, {2, 3})],
)
def test_client_has_cores_of_its_own_where_there_are_two(
    all_of_them: set[int], servers: set[int], clients_own: set[int]
) -> None:
    assert cores.split(all_of_them) == (servers, clients_own)


def test_what_is_started_meanwhile_runs_on_the_named_cores() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    look = "import os, sys; sys.stdout.write(repr(os.sched_getaffinity(0)))"
    with cores.on(one):
        seen = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert seen == repr(one)
    assert os.sched_getaffinity(0) == before
