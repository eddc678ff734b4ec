"""One model and one undisturbed server's answers for all of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]
pytest.importorskip("vllm", reason="vLLM is not installed")

from model import make_model  # noqa: E402
from server import Server  # noqa: E402
from traffic import answers, prompts  # noqa: E402


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Answers of a vLLM with the plugin installed and switched off."""
    server = Server(tmp_path_factory.mktemp("off"), model, env={"LULL_VLLM": "0"})
    try:
        server.wait_ready()
        assert "LULL_VLLM=0; Lull is disabled and vLLM runs as if it were not there" in (
            server.log_text()
        )
        assert not server.directory.exists()
        return answers(server, prompts())
    finally:
        server.stop()


def running(server: Server) -> Iterator[Server]:
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
