"""The engine host: its flags against the settings table, and the real engine behind them."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from gguf_files import embedded_gguf

from trimtab.core.plan import ModelPlan
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.engines.llama_cpp import REQUIRED_XLLAMACPP, LlamaCpp
from trimtab.engines.llama_cpp_settings import SETTINGS
from trimtab.planner.llama_cpp import plan_llama_cpp
from trimtab.probes.gguf_header import read_gguf_header
from trimtab.probes.host import probe_host
from trimtab.runtimes import llama_cpp_host

_MUST = ["--model", "m.gguf", "--alias", "m", "--port", "1"]


def test_host_takes_exactly_the_flags_of_the_settings_table():
    """Whatever can be pinned reaches the engine, and the engine takes nothing that cannot be pinned."""
    taken = {*llama_cpp_host._VALUES, *llama_cpp_host._CHOICES, *llama_cpp_host._SWITCHES}
    assert taken == {spec.flag for spec in SETTINGS.values()}
    for spec in SETTINGS.values():
        if spec.kind == "choice":
            assert tuple(llama_cpp_host._CHOICES[spec.flag][2]) == spec.choices


def _sample(name: str) -> SettingValue:
    spec = SETTINGS[name]
    if spec.kind == "choice":
        return spec.choices[-1]
    return {"integer": 7, "number": 0.5, "switch": True, "text": "chatml"}[spec.kind]


@pytest.mark.parametrize("name", list(SETTINGS))
def test_each_pin_changes_the_field_of_the_real_engine(name: str):
    """Every setting has an effect on the parameters of the installed xllamacpp."""
    xllamacpp = pytest.importorskip("xllamacpp")
    flag = SETTINGS[name].flag
    tables: dict[str, Any] = llama_cpp_host._VALUES | llama_cpp_host._CHOICES | llama_cpp_host._SWITCHES
    field = tables[flag][0]

    def read(flags: list[str]) -> Any:
        options = vars(llama_cpp_host._parser().parse_args([*_MUST, *flags]))
        value: Any = llama_cpp_host._to_params(xllamacpp, options)
        for part in field.split("."):
            value = getattr(value, part)
        return value

    sample = _sample(name)
    if sample is True:
        assert read([flag]) != read([f"--no-{flag.removeprefix('--')}"])
    else:
        assert read([flag, str(sample)]) != read([])


def test_engine_of_another_version_is_named():
    """With another xllamacpp than required, the missing field is named in one line."""
    fake = SimpleNamespace(CommonParams=lambda: SimpleNamespace(model=SimpleNamespace(path="")))
    options = vars(llama_cpp_host._parser().parse_args(_MUST))
    with pytest.raises(AttributeError, match="CommonParams has no model_alias") as caught:
        llama_cpp_host._to_params(fake, options)
    cause = LlamaCpp().explain_exit((f"llama_cpp_host: cannot serve m.gguf: {caught.value}",))
    assert cause == "another xllamacpp is installed than the one required"


def test_host_starts_without_importing_the_rest_of_trimtab():
    """An engine starts at once because its program imports next to nothing."""
    code = "import sys, trimtab.runtimes.llama_cpp_host; print([m for m in sys.modules if 'trimtab' in m])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    allowed = {"trimtab", "trimtab.errors", "trimtab.runtimes", "trimtab.runtimes.llama_cpp_host"}
    assert set(json.loads(out.replace("'", '"'))) <= allowed


@dataclass(frozen=True)
class _Engine:
    """A running engine host and the plan it was started with."""

    process: subprocess.Popen[str]
    port: int
    plan: ModelPlan
    log: Path

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def send(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Send a request and leave the answer unread."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    def is_busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.get("/slots"))


Start = Callable[..., _Engine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the real engine as planned; everything started is ended with the test."""
    running: list[subprocess.Popen[str]] = []

    def _start(
        *, path: Path | None = None, port: int | None = None, memory_bytes: int | None = None, **wish: Any
    ) -> _Engine:
        plan = _plan(wish)
        port = _free_port() if port is None else port
        argv = [part.replace("{port}", str(port)) for part in plan.argv]
        if path is not None:
            argv[argv.index("--model") + 1] = str(path)
        log = tmp_path / f"engine-{len(running)}.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                argv,
                stderr=stderr,
                text=True,
                env=os.environ | dict(plan.env),
                preexec_fn=None if memory_bytes is None else lambda: _limit(memory_bytes),  # noqa: PLW1509
            )
        running.append(process)
        return _Engine(process=process, port=port, plan=plan, log=log)

    yield _start
    for process in running:
        process.kill()
        process.wait(timeout=30)


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _plan(wish: dict[str, Any]) -> ModelPlan:
    context, concurrency = wish.pop("context", None), wish.pop("concurrency", None)
    request = ModelRequest(
        name="smol",
        checkpoint="smol",
        context=context,
        concurrency=concurrency,
        engine_args=tuple(wish.items()),
    )
    outcome = plan_llama_cpp(
        request,
        read_gguf_header(embedded_gguf()),
        probe_host(),
        ram_bytes=None,
        python=sys.executable,
        engine_version=REQUIRED_XLLAMACPP,
    )
    return outcome.model


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: not within {within_s} s"
        time.sleep(0.02)


def _wait_ready(engine: _Engine) -> None:
    def is_ready() -> bool:
        assert engine.process.poll() is None, engine.log.read_text()[-2000:]
        try:
            return engine.get("/health") == {"status": "ok"}
        except OSError:
            return False

    _wait(is_ready, within_s=60, what="readiness")


@pytest.mark.engine
@pytest.mark.parametrize(
    "wish",
    [
        pytest.param({"context": 1000, "concurrency": 3}, id="rounded-up"),
        pytest.param({"context": 2048, "concurrency": 1}, id="one-slot"),
        pytest.param({"n_ctx": 4096, "n_parallel": 4, "kv_unified": True}, id="unified"),
        pytest.param(
            {"context": 8192, "concurrency": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, id="q8"
        ),
        pytest.param(
            {
                "context": 10_000,
                "concurrency": 1,
                "rope_scaling_type": "yarn",
                "rope_freq_scale": 0.5,
                "yarn_orig_ctx": 8192,
            },
            id="yarn",
        ),
    ],
)
def test_real_slots_have_the_planned_context(start: Start, wish: dict[str, Any]):
    """A request may really use as many tokens as the plan says, in as many slots as it says."""
    engine = start(**wish)
    _wait_ready(engine)
    slots = engine.get("/slots")
    assert {slot["n_ctx"] for slot in slots} == {engine.plan.max_model_len}
    assert len(slots) == engine.plan.replicas[0].max_concurrency


@pytest.mark.engine
def test_default_plan_takes_the_memory_it_predicts(start: Start):
    """After real work the default engine holds what its plan said, within ten percent."""
    engine = start(cache_ram_mib=0)
    _wait_ready(engine)
    engine.post("/completion", {"prompt": [500 + n % 999 for n in range(1500)], "n_predict": 8})
    budget = engine.plan.replicas[0].host
    assert budget is not None
    measured = psutil.Process(engine.process.pid).memory_info().rss
    assert measured == pytest.approx(budget.requested_bytes, rel=0.1)


@pytest.mark.engine
def test_client_that_leaves_while_its_prompt_is_computed_frees_the_slot(start: Start):
    """Closing the page during a long prompt gives the slot back long before the prompt is through.

    The request asks for progress, as the gateway does: writing is how llama.cpp notices.
    """
    engine = start(context=8192, concurrency=1)
    _wait_ready(engine)
    prompt = [500 + n % 999 for n in range(8000)]
    body = {"prompt": prompt, "max_tokens": 1, "stream": True, "return_progress": True}
    connection = engine.send("/v1/completions", body)
    _wait(engine.is_busy, within_s=10, what="work on the prompt")
    connection.close()
    _wait(lambda: not engine.is_busy(), within_s=60, what="free slot")
    # The engine's own count of what it had computed when it let the slot go.
    released = re.findall(r"release: .* n_tokens = (\d+)", engine.log.read_text())
    assert int(released[-1]) < len(prompt)


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_in_the_middle_of_a_stream_is_quick_and_clean(start: Start, number: signal.Signals):
    """Stopping never waits for a running answer, and is no failure."""
    engine = start(context=2048, concurrency=1)
    _wait_ready(engine)
    body = {"prompt": "Once", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    connection = engine.send("/v1/completions", body)
    assert connection.recv(4096)
    started_s = time.monotonic()
    engine.process.send_signal(number)
    assert engine.process.wait(timeout=10) == 0
    assert time.monotonic() - started_s < 2
    connection.close()


@pytest.mark.engine
def test_stop_while_loading_ends_the_engine(start: Start):
    """A model that still loads can be stopped at once."""
    engine = start()
    _wait(lambda: "loading model" in engine.log.read_text(), within_s=30, what="loading")
    engine.process.terminate()
    assert engine.process.wait(timeout=5) in (0, -signal.SIGTERM)


def _replaced(tmp_path: Path, old: bytes, new: bytes) -> Path:
    path = tmp_path / "changed.gguf"
    path.write_bytes(embedded_gguf().read_bytes().replace(old, new, 1))
    return path


def _explain(engine: _Engine) -> str:
    """Wait for the engine's end, which must be a failure, and explain it from its log."""
    assert engine.process.wait(timeout=60) != 0
    cause = LlamaCpp().explain_exit(tuple(engine.log.read_text(errors="replace").splitlines()[-40:]))
    assert cause is not None
    return cause


@pytest.mark.engine
def test_real_failures_of_the_model_file_are_explained(start: Start, tmp_path: Path):
    """A file that is cut off, foreign, too new or absent leads to its own plain sentence."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(embedded_gguf().read_bytes()[:50_000_000])
    assert _explain(start(path=cut)) == "the model file is cut off: download it again"
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"JUNK" + bytes(5000))
    assert _explain(start(path=junk)) == "the model file is not a GGUF file"
    missing = tmp_path / "missing.gguf"
    assert "No such file" in _explain(start(path=missing))
    unknown = _replaced(tmp_path, b"llama", b"zlama")
    assert "does not know the architecture zlama" in _explain(start(path=unknown))
    other = _replaced(tmp_path, b"blk.3.attn_q.weight", b"blk.3.attn_Z.weight")
    assert "lacks the tensor blk.3.attn_q.weight" in _explain(start(path=other))


@pytest.mark.engine
def test_real_lack_of_memory_is_explained(start: Start):
    """An engine that gets too little memory says so, instead of a riddle."""
    assert "out of memory" in _explain(start(memory_bytes=900_000_000))


@pytest.mark.engine
def test_real_port_conflict_is_explained(start: Start):
    """An engine whose port is taken names the port."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = int(holder.getsockname()[1])
        assert _explain(start(port=port)) == f"port {port} is taken by another process"


@pytest.mark.engine
def test_real_illegal_instruction_is_explained(start: Start):
    """On a CPU that is too old for the prebuilt engine, the user reads that and not a signal number."""
    engine = start(context=512, concurrency=1)
    _wait_ready(engine)
    engine.process.send_signal(signal.SIGILL)
    assert engine.process.wait(timeout=10) == -signal.SIGILL
    cause = LlamaCpp().explain_exit(tuple(engine.log.read_text().splitlines()))
    assert cause == "this CPU lacks instructions that the prebuilt llama.cpp uses"
