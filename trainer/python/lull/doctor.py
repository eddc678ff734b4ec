"""`python -m lull.doctor`: what a training process finds on this machine, what was measured, and what to fix.

It looks at Python, PyTorch, the device, the allocator, the settings in the environment and the sidecar's socket,
and measures in a process of its own whether memory really goes back. Nothing is changed, and no trainer is made
known to the sidecar: the first question to its socket is a line that it answers with an error before any hello, the
second a hello of the job "lull-doctor", which it answers with what a trainer of this process and device would hear. A
sidecar that does not name that job in its first answer would make a trainer of it, and is not asked.
The exit status is 1 when something must be fixed. Torch is imported in the child only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from lull._config import Config
from lull._errors import ChannelError, ConfigError, LineError
from lull._greeting import say_bytes
from lull._protocol import VERSION, Error, Hello, Message, Pong, decode, encode
from lull._transport import Transport, connect
from lull.run import environment, locate

__all__ = ["Finding", "examine", "main", "script"]

OK, NOTE, BAD = "ok", "note", "bad"

LEAST_TORCH: Final = (2, 4)
_ANSWER_S: Final = 2.0
_JOB: Final = "lull-doctor"
_PROBE_S: Final = 120.0
_HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what it is, how it is (ok, note, bad), what was seen and what to do."""

    what: str
    how: str
    seen: str
    fix: str = ""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    seen = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < (3, 10):
        return Finding("python", BAD, seen, "use Python 3.10 or later")
    return Finding("python", OK, seen)


def check_torch(probe: Mapping[str, Any]) -> Finding:
    """What the child says of PyTorch."""
    version = probe.get("torch", "")
    if not version:
        return Finding("torch", BAD, f"not importable: {probe.get('error', 'no answer')}", "pip install 'torch>=2.4'")
    numbers = tuple(int(n) for n in version.partition("+")[0].split(".")[:2])
    if numbers < LEAST_TORCH:
        return Finding("torch", BAD, version, "pip install 'torch>=2.4'")
    return Finding("torch", OK, version)


def check_device(probe: Mapping[str, Any]) -> Finding:
    if not probe.get("device"):
        return Finding("device", BAD, "unknown, since torch does not run", "see torch")
    return Finding("device", OK, f"{probe['device']}, {say_bytes(probe['device_bytes'])}, {probe['threads']} threads")


def check_allocator(library: str | None, environ: Mapping[str, str]) -> Finding:
    """Where activation memory will come from on a CPU."""
    if library is None:
        return Finding(
            "allocator",
            BAD,
            "no native arena, and no C compiler to make it; memory goes back through malloc, about ten times slower, "
            "and the ceiling is kept only between operators",
            "install a C compiler (gcc), or name a built library in LULL_ARENA",
        )
    if library in environ.get("LD_PRELOAD", "").split(":"):
        return Finding("allocator", OK, f"the native arena {library} is in this process")
    return Finding(
        "allocator", OK, f"the native arena {library} is there; `python -m lull.run script.py` puts it into a process"
    )


def check_memory(probe: Mapping[str, Any], way: str) -> Finding:
    """Whether bytes that were let go left the process, by the device's own books."""
    what = f"memory, {way}"
    if "taken" not in probe:
        return Finding(what, BAD, f"not measured: {probe.get('error', 'no answer')}", "see torch")
    taken, back, seconds = probe["taken"], probe["returned"], probe["seconds"]
    seen = (
        f"measured: {say_bytes(back)} of {say_bytes(taken)} came back in {seconds * 1e3:.2f} ms "
        f"({back / max(seconds, 1e-9) / 2**30:.1f} GiB/s) from {probe['pool']}"
    )
    if back < 0.9 * taken:
        return Finding(what, BAD, seen, "start with `python -m lull.run`; without it the sidecar is lent nothing real")
    return Finding(what, OK, seen)


def check_huge_pages(path: Path = _HUGE) -> Finding:
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return Finding("huge pages", NOTE, f"{path} cannot be read", "nothing, unless memory comes back slowly")
    setting = text.partition("[")[2].partition("]")[0]
    if setting == "never":
        return Finding(
            "huge pages",
            NOTE,
            "off: giving memory back takes about twice as long",
            f"echo madvise > {path} (root)",
        )
    return Finding("huge pages", OK, setting)


def check_priority(root: bool | None = None, limit: int | None = None) -> Finding:
    """Whether the threads that handle orders may run before the training thread."""
    root = os.geteuid() == 0 if root is None else root
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0] if limit is None else limit
    if root or limit < 0 or limit >= 30:
        return Finding("priority", OK, "threads that handle orders may run first")
    return Finding(
        "priority",
        NOTE,
        "threads that handle orders wait their turn when all cores are busy",
        "raise the limit `nice` to 30 (ulimit -e 30; LimitNICE=-10 in a unit)",
    )


def check_settings(environ: Mapping[str, str]) -> tuple[Finding, Config | None]:
    try:
        c = Config.from_env(environ)
    except ConfigError as error:
        return Finding("settings", BAD, str(error), f"correct or unset {error.key}"), None
    own = "half of the device's memory" if c.budget is None else say_bytes(c.budget)
    least = say_bytes(c.min_budget) if c.min_budget else "what one sample takes"
    seen = f"job {c.job}, device {c.device or 'as torch calls it'}, own budget {own}, min budget {least}"
    return Finding("settings", OK, seen), c


def check_socket(
    config: Config, open_transport: Callable[[Config], Transport] = connect, device: str = "cpu"
) -> Finding:
    """Whether a sidecar answers there, takes this user and has this device, which is torch's name for it where
    LULL_DEVICE says none."""
    what, path = "socket", config.socket
    if not path:
        return Finding(what, NOTE, "LULL_SOCKET is empty: the job trains alone, with its own budget")
    if not path.startswith("tcp://"):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            fix = "start `lull serve`, or set LULL_SOCKET to its socket"
            return Finding(what, NOTE, f"{path} is not there: the job trains alone until a sidecar comes", fix)
        except OSError as error:
            return Finding(what, BAD, f"{path}: {error.strerror}", "let this user into the socket's folder")
        if not stat.S_ISSOCK(mode):
            return Finding(what, BAD, f"{path} is no socket", "set LULL_SOCKET to the sidecar's socket")
    try:
        line = open_transport(config)
    except ChannelError as error:
        fix = "start `lull serve`; where it runs, name this user in its lull.yaml (trainers.allow_uids)"
        return Finding(what, BAD, str(error).partition("; training")[0], fix)
    try:
        return _ask(line, config, config.device or device)
    finally:
        line.close()


def _ask(line: Transport, config: Config, device: str) -> Finding:
    """A pong before hello is answered with an error line by every sidecar."""
    path = config.socket
    line.set_timeout(_ANSWER_S)
    line.send(encode(Pong()))
    got = line.recv()
    if not got:
        silent = "does not answer within 2 s" if got is None else "closes at once"
        return Finding("socket", BAD, f"{path} takes a connection but {silent}", "restart `lull serve`")
    try:
        answer = decode(got.partition(b"\n")[0])
    except LineError:
        answer = None
    if not isinstance(answer, Error):
        return Finding("socket", BAD, f"{path} is not a sidecar's: it said {got[:60]!r}", "set LULL_SOCKET")
    if answer.what == "connect":
        fix = "name this user in lull.yaml (trainers.allow_uids), or run as the sidecar's user"
        return Finding("socket", BAD, f"{path} refuses this user: {answer.where} {answer.rule}", fix)
    if _JOB not in answer.rule:
        old = "it is older than this doctor, so it was not asked about the device and this process"
        return Finding("socket", OK, f"a sidecar answers on {path} and takes this user; {old}")
    return _ask_device(line, config, device)


def _ask_device(line: Transport, config: Config, device: str) -> Finding:
    """Says hello as a doctor and takes the error line that follows the welcome."""
    path = config.socket
    hello = Hello(VERSION, _JOB, 0, 1, os.getpid(), device, ceiling=0, held=0, last_epoch=0)
    if path.startswith("tcp://"):
        hello = replace(hello, token=config.token)
    line.send(encode(hello))
    said = next((m for m in _messages(line) if isinstance(m, Error)), None)
    if said is None or said.what != "hello":  # another doctor may be there
        return Finding("socket", OK, f"a sidecar answers on {path} and takes this user; it did not say more")
    if said.where == "device":
        return Finding(
            "socket", BAD, f"{path}: device: {said.rule}", "set LULL_DEVICE to a device of the sidecar's lull.yaml"
        )
    if said.where == "pid":
        return Finding("socket", BAD, f"{path}: {said.rule}", "share the sidecar's PID namespace (containers: pid:)")
    if said.where != "doctor":
        return Finding("socket", BAD, f"{path} refuses hello: {said.where} {said.rule}", "see docs/TRAINING.md")
    return Finding("socket", OK, f"a sidecar answers on {path} and takes this user; {said.rule}")


def _messages(line: Transport) -> Iterator[Message]:
    """What comes until the connection ends, is silent for a while or says what cannot be read."""
    rest = b""
    while got := line.recv():
        *whole, rest = (rest + got).split(b"\n")
        try:
            yield from [decode(text) for text in whole]
        except LineError:
            return


def probe(env: Mapping[str, str]) -> dict[str, Any]:
    """What a child with this environment measures; a dict with "error" when it cannot."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lull._torch.probe"],
            env=dict(env),
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_PROBE_S:.0f} s"}
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"error": last[:300]}
    return found


def examine(
    environ: Mapping[str, str], measure: Callable[[Mapping[str, str]], dict[str, Any]] = probe
) -> list[Finding]:
    """Everything that can be found out, in the order in which it should be fixed."""
    library = locate(environ)
    run = dict(environ)
    environment(run, library)
    with_run, plain = measure(run), measure(environ)
    settings, config = check_settings(environ)
    findings = [check_python(), check_torch(with_run), check_device(with_run)]
    if with_run.get("kind", "cpu") == "cpu":
        findings += [check_allocator(library, environ), check_huge_pages(), check_priority()]
    findings.append(check_memory(with_run, "with lull.run"))
    if library is not None and library not in environ.get("LD_PRELOAD", "").split(":"):
        findings.append(check_memory(plain, "without lull.run"))
    findings.append(settings)
    if config is not None:
        findings.append(check_socket(config, device=str(with_run.get("device", "cpu")).partition(" ")[0]))
    return findings


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the findings; 1 when something must be fixed."""
    parser = argparse.ArgumentParser(prog="python -m lull.doctor", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")
    args = parser.parse_args(argv)
    findings = examine(os.environ)
    for f in findings:
        if args.json:
            print(json.dumps(asdict(f)))
            continue
        print(f"{f.how:<5} {f.what}: {f.seen}")
        if f.fix:
            print(f"      fix: {f.fix}")
    return 1 if any(f.how == BAD for f in findings) else 0


def script() -> int:
    """The console script `lull-trainer`."""
    args = sys.argv[1:]
    if args[:1] != ["doctor"]:
        print("usage: lull-trainer doctor [--json]", file=sys.stderr)
        return 2
    return main(args[1:])


if __name__ == "__main__":
    sys.exit(main())
