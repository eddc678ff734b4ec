"""The environment is read once, and arguments beat it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from lull._config import Config, parse_bytes
from lull._errors import ConfigError, LullError

pytestmark = pytest.mark.cpu


def test_defaults_without_an_environment() -> None:
    config = Config.from_env({})
    assert (config.socket, config.rank, config.world, config.budget, config.min_budget) == (
        "/run/lull/lull.sock",
        0,
        1,
        None,
        0,
    )
    assert config.job == f"pid-{os.getpid()}"


def test_environment_is_read() -> None:
    env = {
        "LULL_SOCKET": "/tmp/s",
        "LULL_JOB": "gpt",
        "LULL_RANK": "1",
        "LULL_WORLD": "2",
        "LULL_DEVICE": "host0",
        "LULL_BUDGET": "64MiB",
        "LULL_MIN_BUDGET": "1.5MiB",
        "LULL_RELEASE": "batch",
        "LULL_TOKEN": "secret",
        "LULL_TLS_CA": "/ca",
    }
    want = Config("/tmp/s", "gpt", 1, 2, "host0", 64 << 20, 3 << 19, "batch", "secret", "/ca")
    assert Config.from_env(env) == want


def test_torchrun_names_ranks_and_job() -> None:
    config = Config.from_env({"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "run7"})
    assert (config.rank, config.world, config.job) == (3, 4, "run7")


def test_ranks_without_a_name_share_their_parents() -> None:
    assert Config.from_env({"RANK": "0", "WORLD_SIZE": "2"}).job == f"pid-{os.getppid()}"
    unnamed = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}  # what torchrun calls every other run
    assert Config.from_env(unnamed).job == f"pid-{os.getppid()}"


def test_arguments_beat_the_environment() -> None:
    env = {"LULL_SOCKET": "/env", "LULL_JOB": "env", "LULL_RANK": "1", "LULL_WORLD": "2", "LULL_BUDGET": "1MiB"}
    config = Config.from_env(env, socket="/arg", job="arg", rank=0, world=1, budget="2MiB", min_budget=5)
    assert (config.socket, config.job, config.rank, config.world) == ("/arg", "arg", 0, 1)
    assert (config.budget, config.min_budget) == (2 << 20, 5)


def test_an_empty_variable_is_not_set_but_for_the_socket() -> None:
    names = ("JOB", "RANK", "WORLD", "DEVICE", "BUDGET", "MIN_BUDGET", "RELEASE", "TOKEN", "TLS_CA", "LOG", "SOCKET")
    empty = Config.from_env({f"LULL_{name}": "" for name in names} | {"RANK": "", "WORLD_SIZE": ""})
    assert empty == replace(Config.from_env({}), socket="")


def test_the_process_environment_is_used_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LULL_JOB", "from-os")
    assert Config.from_env().job == "from-os"


def test_token_is_not_printed() -> None:
    assert "secret" not in repr(Config(token="secret"))


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({"LULL_RANK": "x"}, "config LULL_RANK: got 'x', want an integer"),
        ({"RANK": "x"}, "config RANK: got 'x', want an integer"),
        ({"LULL_RANK": "2"}, "config rank: got '2 of 1', want 0 <= rank < world"),
        ({"LULL_RANK": "-1"}, "config rank: got -1, want at least 0"),
        (
            {"LULL_BUDGET": "64MB"},
            "config LULL_BUDGET: got '64MB', want a number with B, KiB, MiB or GiB, such as 640MiB",
        ),
        (
            {"LULL_RELEASE": "fast"},
            "config release: got 'fast', want one of slots, next-saved, microbatch, batch",
        ),
        *(
            ({"LULL_SOCKET": bad}, f"config socket: got '{bad}', want a path, tcp://host:port or \"\" (LULL_SOCKET)")
            for bad in (
                "http://x:1",
                "tcp://host",
                "tcp://:1",
                "tcp://host:x",
                "tcp://h:65536",
                "tcp://h/x:1",
                "tcp://",
            )
        ),
        ({"LULL_LOG": "loud"}, "config log: got 'loud', want one of debug, info, warning, error"),
        (
            {"LULL_BUDGET": "1B", "LULL_MIN_BUDGET": "2B"},
            "config budget: got 1, want at least min_budget, 2",
        ),
    ],
)
def test_error_names_key_value_and_rule(env: dict[str, str], want: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_env(env)
    assert str(caught.value) == f"{want}; nothing is started"
    assert isinstance(caught.value, LullError)


@pytest.mark.parametrize("good", ["", "/run/x", "here.sock", "tcp://host:1", "tcp://[::1]:65535", "tcp://10.0.0.1:1"])
def test_addresses_that_may_be(good: str) -> None:
    assert Config.from_env({"LULL_SOCKET": good}).socket == good


def test_times_must_be_positive() -> None:
    with pytest.raises(
        ConfigError, match=r"want positive seconds, the first backoff at most the longest; nothing is started$"
    ):
        Config(backoff_first_s=3.0, backoff_max_s=2.0)


@pytest.mark.parametrize(("text", "want"), [("17", 17), ("4096B", 4096), (" 2 GiB ", 2 << 30), ("1.5KiB", 1536)])
def test_sizes_read_as_in_go(text: str, want: int) -> None:
    assert parse_bytes("x", text) == want


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1e3", "NaN", "1 TiB", "1MiB\nx"])
def test_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bytes("x", text)
