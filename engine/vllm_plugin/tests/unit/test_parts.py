"""The small parts: settings, versions, /proc, bells, and register itself."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import lull_vllm
from lull_vllm import _assemble, _compat, _process
from lull_vllm._config import Config, prepare_directory
from lull_vllm._doorbell import Doorbell
from lull_vllm._errors import LullVLLMError, NameTakenError

pytestmark = pytest.mark.cpu


def test_public_names() -> None:
    assert lull_vllm.__all__ == ["__version__", "register"]


def test_config_comes_from_the_environment() -> None:
    config = Config.from_env(
        {
            "LULL_VLLM_NAME": "a.1", "LULL_VLLM_DIR": "/run/x", "LULL_VLLM_LEASE_S": "2.5",
            "LULL_VLLM_INITIAL_BOUND": "1.5 GiB", "LULL_VLLM_MARGIN": "4096",
        }
    )  # fmt: skip
    assert config == Config(True, Path("/run/x"), "a.1", 3 << 29, 2.5, 4096)
    assert config.path("page") == Path("/run/x/a.1.page")
    plain = Config.from_env({})
    assert plain.enabled and plain.initial_bound is None and plain.name == "vllm"
    assert not Config.from_env({"LULL_VLLM": "0"}).enabled


@pytest.mark.parametrize(
    ("key", "value", "want"),
    [
        ("LULL_VLLM_NAME", "a/b", "LULL_VLLM_NAME: got 'a/b', want letters, digits"),
        ("LULL_VLLM_INITIAL_BOUND", "5GB", "LULL_VLLM_INITIAL_BOUND: got '5GB', want bytes such"),
        ("LULL_VLLM_MARGIN", "-1", "LULL_VLLM_MARGIN: got '-1', want bytes"),
        ("LULL_VLLM_LEASE_S", "0", r"LULL_VLLM_LEASE_S: got '0', want seconds in \(0, 86400\)"),
        ("LULL_VLLM_LEASE_S", "x", "LULL_VLLM_LEASE_S: got 'x'"),
    ],
)
def test_config_error_names_key_and_value(key: str, value: str, want: str) -> None:
    with pytest.raises(LullVLLMError, match=want):
        Config.from_env({key: value})


def test_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    prepare_directory(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").stat().st_mode & 0o777 == 0o700
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(LullVLLMError, match="mode 777; want owner"):
        prepare_directory(open_to_all)


def test_second_engine_of_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_assemble, "_CLAIM_PAUSE_S", 0.001)
    config = Config.from_env({"LULL_VLLM_DIR": str(tmp_path)})
    first = _assemble._claim(config)
    with pytest.raises(
        NameTakenError, match=r"another engine uses the name 'vllm' in .*; set LULL"
    ):
        _assemble._claim(config)
    first.close()
    _assemble._claim(config).close()


@pytest.mark.parametrize(
    ("version", "works"),
    [("0.32.0", True), ("0.32.7.post1", True), ("0.31.9", False), ("0.33.0", False),
     ("1.0", False), ("dev", False)],
)  # fmt: skip
def test_only_the_tested_range_is_hooked(version: str, works: bool) -> None:
    reason = _compat.outside_range(version)
    assert (reason == "") == works
    if not works:
        assert reason == f"vLLM {version} is outside the tested range >= 0.32, < 0.33"


def test_vllm_without_what_the_hooks_need_is_named() -> None:
    class Scheduler:
        schedule = update_from_output = shutdown = None
        get_request_counts: None = None

    class Core:
        run_busy_loop = None

    reason = _compat.missing_parts(Scheduler, Core, Scheduler)
    assert reason.startswith(
        "this vLLM has no Scheduler.get_grammar_bitmask, Core._handle_client_request, "
    )


def scheduler(**changes: Any) -> Any:
    parallel = SimpleNamespace(
        pipeline_parallel_size=changes.pop("pipeline", 1),
        data_parallel_size=changes.pop("data", 1),
        decode_context_parallel_size=changes.pop("context", 1),
    )
    groups = [SimpleNamespace(kv_cache_spec=object())] * changes.pop("groups", 1)
    config = SimpleNamespace(
        parallel_config=parallel,
        speculative_config=changes.pop("speculative", None),
        kv_transfer_config=changes.pop("connector", None),
    )
    return SimpleNamespace(
        vllm_config=config, kv_cache_config=SimpleNamespace(kv_cache_groups=groups)
    )


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, ""),
        ({"connector": 1}, "a KV connector may read or write blocks outside the steps"),
        ({"pipeline": 2}, "pipeline parallelism is not tested"),
        ({"data": 2}, "data parallelism is not tested"),
        ({"context": 2}, "context parallelism is not tested"),
        ({"groups": 2}, "the model has 2 KV cache groups, and only one is tested"),
        ({"speculative": SimpleNamespace(method="eagle")}, "speculative decoding by eagle is not"),
        ({"speculative": SimpleNamespace(method="ngram")}, ""),
    ],
)
def test_engine_that_is_not_tested_gets_no_bound(
    changes: dict[str, Any], want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_compat, "_full_attention", lambda spec: True)
    assert _compat.no_bound(scheduler(**changes)).startswith(want)
    monkeypatch.setattr(_compat, "_full_attention", lambda spec: False)
    if not want:
        assert _compat.no_bound(scheduler(**changes)) == "KV cache of kind object is not tested"


def test_register_outside_the_range_says_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version = ModuleType("vllm.version")
    version.__version__ = "0.99.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.version", version)
    with caplog.at_level(logging.WARNING, "vllm.lull"):
        lull_vllm.register()
    assert caplog.messages == [
        "lull: vLLM 0.99.1 is outside the tested range >= 0.32, < 0.33; "
        "Lull is disabled and vLLM runs as if it were not there"
    ]


def test_register_that_fails_says_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.version", None)
    with caplog.at_level(logging.WARNING, "vllm.lull"):
        lull_vllm.register()
    assert len(caplog.messages) == 1 and "Lull is disabled" in caplog.messages[0]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({"proc/self/cgroup": "0::/a/b\n"}, 8192 * 1024),
        (
            {
                "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "5000000\n",
                "sys/fs/cgroup/a/memory.current": "1000000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "7\n",
            },
            4000000,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/x\n0::/\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3000\n",
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "5000\n",
            },
            0,
        ),
        ({}, 8192 * 1024),
    ],
)  # fmt: skip
def test_room_is_the_least_of_machine_and_cgroups(
    tmp_path: Path, files: dict[str, str], want: int
) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8192 kB\n", **files})
    assert _process.room_bytes(tmp_path) == want


def test_own_bytes_counts_anonymous_and_shared_memory(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS: 99 kB\nRssAnon:\t 5 kB\nRssFile:\t 7 kB\nRssShmem:\t 2 kB\n")
    assert _process.own_bytes(str(status)) == 7 * 1024
    assert _process.own_bytes() > 1 << 20


def test_mapping_with_a_hole_or_a_file_is_not_private_memory(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "1000-3000 rw-p 00000000 00:00 0 \n"
        "3000-4000 rw-p 00000000 00:00 0 [heap]\n"
        "5000-6000 rw-p 00000000 fe:00 123 /x y\n"
        "6000-7000 rw-s 00000000 00:00 0\n"
    )
    check = lambda low, high: _process.is_private_anonymous(low, high - low, str(maps))  # noqa: E731
    assert check(0x1000, 0x4000) and check(0x2000, 0x3800)
    assert not check(0x3000, 0x5000) and not check(0x5000, 0x6000)
    assert not check(0x6000, 0x7000) and not check(0x8000, 0x9000)


def test_bell_rings_once_for_many_and_never_fails(tmp_path: Path) -> None:
    bell = Doorbell(tmp_path / "own", tmp_path / "peer")
    bell.ring(b"s")  # nobody there
    assert not bell.wait(0.001)
    bell.wake()
    bell.wake()
    assert bell.wait(1) and not bell.wait(0.001)
    peer = Doorbell(tmp_path / "peer", tmp_path / "own")
    for _ in range(10000):  # nobody reads: the queue fills, ring drops
        bell.ring(b"s")
    assert peer.wait(1)
    peer.close()
    bell.close()
    bell.ring(b"s")
    assert not os.listdir(tmp_path)
