"""How llama.cpp is commanded, and what its last words mean."""

from __future__ import annotations

import pytest

from trimtab.core.plan import ModelPlan, Setting
from trimtab.engines import embedded_model
from trimtab.engines.llama_cpp import LlamaCpp

_PLAN = ModelPlan(
    name="smol",
    checkpoint="/models/a b.gguf",
    fits=True,
    engine="llama_cpp",
    engine_version="1",
    runtime="process",
    max_model_len=4096,
    settings=(
        Setting(name="rope_freq_scale", value=0.25, origin="pinned"),
        Setting(name="n_ctx", value=8192, origin="asked"),
        Setting(name="kv_unified", value=False, origin="pinned"),
        Setting(name="embeddings", value=True, origin="chosen"),
        Setting(name="flash_attn", value="auto", origin="default"),
    ),
    replicas=(),
)


def test_argv_is_what_an_expert_of_llama_server_would_write():
    """The printed command can be read, and pasted, by someone who knows llama-server."""
    assert LlamaCpp().render_argv(_PLAN, python="/venv/python") == (
        *("/venv/python", "-m", "trimtab.runtimes.llama_cpp_host"),
        *("--model", "/models/a b.gguf", "--alias", "smol", "--host", "127.0.0.1", "--port", "{port}"),
        *("--ctx-size", "8192", "--flash-attn", "auto", "--no-kv-unified", "--embeddings"),
        *("--rope-freq-scale", "0.25"),
    )


def test_env_keeps_a_crashing_engine_from_starting_a_debugger():
    """A crash ends the engine at once instead of leaving a debugger attached to it."""
    assert LlamaCpp().render_env(_PLAN) == (("GGML_NO_BACKTRACE", "1"),)


# Lines as xllamacpp 2026.10.11549 wrote them when the failure was provoked; test_llama_cpp_host.py
# provokes most of them again.
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        pytest.param(
            "0.00.020.522 E llama_model_load: error loading model: tensor 'blk.16.ffn_down.weight' data is"
            " not within the file bounds, model is corrupted or incomplete",
            "cut off",
            id="truncated",
        ),
        pytest.param(
            "0.00.002.952 E gguf_init_from_reader: invalid magic characters: '???{', expected 'GGUF'",
            "not a GGUF file",
            id="no-gguf",
        ),
        pytest.param(
            "E gguf_init_from_file: failed to open GGUF file 'nope.gguf' (No such file or directory)",
            "cannot open nope.gguf: No such file or directory",
            id="missing",
        ),
        pytest.param(
            "E llama_model_load: error loading model: unknown model architecture: 'zlama'",
            "architecture zlama",
            id="architecture",
        ),
        pytest.param(
            "E llama_model_load: error loading model: tensor 'blk.3.attn_q.weight' not found",
            "lacks the tensor blk.3.attn_q.weight",
            id="tensor",
        ),
        pytest.param(
            "E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 1509949440",
            "out of memory while allocating 1,440 MiB",
            id="no-memory-for-kv-cache",
        ),
        pytest.param("error creating backtrace: mmap: 12", "out of memory", id="no-memory-at-all"),
        pytest.param(
            "E srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18334",
            "port 18334 is taken",
            id="port",
        ),
        pytest.param("Fatal Python error: Illegal instruction", "lacks instructions", id="old-cpu"),
        pytest.param(
            "ModuleNotFoundError: No module named 'xllamacpp'",
            "package xllamacpp is missing",
            id="no-package",
        ),
        pytest.param(
            "ImportError: /lib/libc.so.6: version `GLIBC_2.32' not found", "needs GLIBC_2.32", id="old-system"
        ),
        pytest.param(
            "llama_cpp_host: cannot serve m.gguf: CommonParams has no hostnames",
            "another xllamacpp is installed",
            id="other-version",
        ),
        pytest.param(
            "E llama_model_load: error loading model: something new", "something new", id="any-load-error"
        ),
    ],
)
def test_last_words_are_explained(line: str, cause: str):
    """When the engine dies, the user reads why in plain words."""
    log = (
        "0.00.001 I srv init: initializing ...",
        line,
        "0.00.002 E srv  load_model: failed to load model, 'x'",
    )
    explained = LlamaCpp().explain_exit(log)
    assert explained is not None
    assert cause in explained


def test_ordinary_log_explains_nothing():
    """No cause is invented for an engine that was killed from outside."""
    log = ("0.00.197.716 I srv          init: model loaded", "llama_cpp_host: ready at http://127.0.0.1:1")
    assert LlamaCpp().explain_exit(log) is None


def test_embedded_model_is_pinned_by_digest():
    """The default model cannot be swapped for another file unnoticed."""
    assert len(embedded_model.GGUF_SHA256) == len(embedded_model.WHEEL_SHA256) == 64
