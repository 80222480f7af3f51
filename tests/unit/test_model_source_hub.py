"""A model's facts from a hub: ranges, faults, mirrors, tokens and what is used instead, on 127.0.0.1."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

import pytest
from checkpoint_facts import write_safetensors
from fake_hub import COMMIT, FakeHub, Fault
from huggingface_hub import close_session, constants
from test_model_source import TINY, cache_snapshot, stored_tensors, write_model

from trimtab.core.model_source import GgufSource, ModelSource
from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.planner.tensor_inventory import render_inventory, sum_bytes
from trimtab.probes import hub_facts, hub_reach, model_source_repo
from trimtab.probes.hub_files import choose_engine_files
from trimtab.probes.hub_reach import is_reachable
from trimtab.probes.model_source import read_model_source

REPO = "org/tiny"
INFERRED = "cyankiwi/Qwen3.5-27B-AWQ-4bit"
GATED = {"X-Error-Code": "GatedRepo"}
SECRET = "hf_verysecret"


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch, tmp_path):
    """No test sees this user's tokens, caches, proxies or mirrors, nor another test's connections."""
    for name in list(os.environ):
        if name.startswith(
            ("HF_", "HUGGING", "TRANSFORMERS_", "VLLM_", "MODELSCOPE_")
        ) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "shared"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    # Shorter than a hub that hangs here, longer than a busy machine takes for an answer.
    monkeypatch.setattr(model_source_repo, "_LISTING_S", 3.0)
    monkeypatch.setattr(hub_facts, "_READ_TIMEOUT_S", 3.0)
    hub_reach._failed_at_s.clear()
    yield
    close_session()


@pytest.fixture
def files(tmp_path) -> dict[str, bytes]:
    """A whole small checkpoint, as a repository holds it."""
    folder = write_model(tmp_path / "made")
    texts = {
        "generation_config.json": b"{}",
        "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}).encode(),
        "README.md": b"hi",
    }
    return {path.name: path.read_bytes() for path in folder.iterdir()} | texts


@pytest.fixture
def hub(monkeypatch, files):
    fake = FakeHub(repos={REPO: files})
    fake.start()
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    # Nothing of a test goes further: ModelScope is where nobody listens.
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    yield fake
    fake.stop()


@pytest.fixture
def read(tmp_path):
    """``read_model_source`` with a cache of this test's own."""

    def call(checkpoint=REPO, **options) -> Any:
        return read_model_source(checkpoint, cache_dir=tmp_path / "cache", **options)

    return call


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def warning_codes(source: ModelSource) -> list[str]:
    return [warning.code for warning in source.warnings]


def test_facts_come_from_the_config_and_the_headers(hub, read):
    """A model is planned exactly before a byte of its weights is here."""
    reports = []
    found = read(report=lambda *report: reports.append(report))

    assert (found.origin, found.revision, found.local_path) == ("hub", COMMIT, None)
    assert found.weights_bytes == sum_bytes(render_inventory(found.parts, dtype="bfloat16"))
    assert found.facts.basis == "measured from the files"
    assert found.has_generation_config
    assert found.chat_template == "{{ messages }}"
    needed = [data for name, data in hub.repos[REPO].items() if name != "README.md"]
    assert found.download_bytes == sum(map(len, needed))
    assert found.warnings == ()
    assert reports[-1] == (f"reading the headers of {REPO}", 2, 2)


@pytest.mark.parametrize("ignores_range", [False, True], ids=["ranges", "server ignores ranges"])
def test_weights_are_never_fetched(hub, read, ignores_range):
    """Facts of 40 GB of weights cost their headers, also from a server that would send everything."""
    shards = [name for name in hub.repos[REPO] if name.endswith(".safetensors")]
    hub.padding = dict.fromkeys(shards, 20 << 30)
    hub.says_sizes = False
    hub.file_faults += [Fault(ignores_range=ignores_range) for _ in range(20)]

    found = read()

    assert found.facts.basis == "measured from the files"
    # What the sockets' buffers swallowed before the connection was closed is sent, too.
    assert all(hub.bytes_sent[name] < 64 << 20 for name in shards)


def test_a_header_longer_than_the_first_span_is_fetched_on(hub, read, monkeypatch):
    """Files with very many tensors take a second request, not a wrong answer."""
    monkeypatch.setattr(hub_facts, "_FIRST_SPAN_BYTES", 64)

    assert read().facts.basis == "measured from the files"
    assert sorted(set(hub.asked["model-00001-of-00002.safetensors"])) == sorted(
        {"bytes=0-63", hub.asked["model-00001-of-00002.safetensors"][1]}
    )


def test_a_second_plan_asks_nobody(hub, read):
    """What was read once is there without a network; a newer commit is noticed after a week."""
    first = read()
    asked = hub.listings

    assert read() == first
    assert hub.listings == asked


def test_old_facts_are_checked_and_read_anew_when_the_commit_changed(hub, read, tmp_path):
    """A model that changed on the hub is planned as it is now, an unchanged one costs one request."""
    first = read()
    (memory,) = (tmp_path / "cache" / "facts").iterdir()
    os.utime(memory, (1, 1))
    headers = len(hub.asked["model-00001-of-00002.safetensors"])
    assert read() == first
    assert len(hub.asked["model-00001-of-00002.safetensors"]) == headers
    os.utime(memory, (1, 1))
    hub.commit = "d" * 40

    assert read().revision == "d" * 40
    assert len(hub.asked["model-00001-of-00002.safetensors"]) == 2 * headers


def test_old_facts_serve_when_the_hub_is_gone(hub, read, tmp_path, monkeypatch):
    """A laptop on a train plans what it planned at home."""
    first = read()
    (memory,) = (tmp_path / "cache" / "facts").iterdir()
    os.utime(memory, (1, 1))
    hub.listing_faults += [Fault(status=503)] * 9

    found = read()

    assert found.facts == first.facts
    assert warning_codes(found) == ["hub_not_asked"]


def test_a_revision_is_asked_for_and_remembered_apart(hub, read):
    """A pinned revision is not mixed up with the newest."""
    read()
    read(revision="v2")

    assert hub.revisions == ["", "v2"]


def test_offline_asks_nobody(hub, read, monkeypatch):
    """Offline means no packet, by argument or by HF_HUB_OFFLINE."""
    with pytest.raises(StackFileError):
        read(offline=True)
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
        with pytest.raises(StackFileError):
            read()
        monkeypatch.delenv(variable)
    assert hub.listings == 0


def test_known_models_do_not_ask_the_hub(hub, read):
    """An exact entry of the table is planned at once, with a network or without."""
    assert read("Qwen/Qwen3.5-27B-FP8").origin == "built in"
    assert hub.listings == 0


def test_an_inferred_mask_is_looked_up_where_there_is_a_hub(hub, read, files):
    """What the table only concludes, the hub's headers tell."""
    hub.repos[INFERRED] = files

    assert read(INFERRED).origin == "hub"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=503),
        Fault(status=429),
        Fault(status=404, headers={"X-Error-Code": "RepoNotFound"}),
        Fault(status=403, headers=GATED),
        Fault(body=b"<html>log in</html>"),
        Fault(hang_s=5),
    ],
    ids=["5xx", "429", "404", "gated", "portal", "hangs"],
)
def test_a_known_model_is_planned_whatever_the_hub_answers(hub, read, fault):
    """A hub in trouble is a warning where the facts are at hand."""
    hub.listing_faults += [fault] * 9

    found = read(INFERRED)

    assert found.origin == "built in"
    assert warning_codes(found) == ["inferred_mask", "hub_not_asked"]


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault(status=403, headers=GATED), EnvironmentMissingError, "gated"),
        (Fault(status=401, headers={"X-Error-Code": "RepoNotFound"}), StackFileError, "has no"),
        (Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}), StackFileError, "has no"),
        (Fault(status=429), EnvironmentMissingError, "429"),
        (Fault(status=500), EnvironmentMissingError, "500"),
        (Fault(body=b"<html>log in</html>"), EnvironmentMissingError, "does not answer as"),
    ],
    ids=["gated", "401", "revision", "429", "5xx", "portal"],
)
def test_an_unknown_model_is_one_sentence_per_fault(hub, read, fault, error, words):
    """Each answer of the hub says what to do, with nothing of a library in it."""
    hub.listing_faults += [fault] * 9

    with pytest.raises(error, match=words) as caught:
        read()
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_misspelt_known_model_is_answered_with_its_name(hub, read):
    """A typing error that reaches the hub comes back with the right name."""
    with pytest.raises((StackFileError, EnvironmentMissingError)) as caught:
        read("Qwen/Qwen3.5-35B-A3-FP8")

    assert "Qwen/Qwen3.5-35B-A3B-FP8" in caught.value.hint


def test_an_unreachable_hub_costs_two_seconds_at_most(read, monkeypatch):
    """A cable that is not plugged in is found out quickly: also where packets vanish."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(8):  # The queue of a listener that accepts nobody: further connections hang.
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(full.getsockname())
            waiting.append(client)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{full.getsockname()[1]}")
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{full.getsockname()[1]}")
        start_s = time.monotonic()
        with pytest.raises(EnvironmentMissingError, match="cannot be reached"):
            read()
        took_s = time.monotonic() - start_s
        for client in waiting:
            client.close()
    assert took_s < 6


def test_a_name_that_cannot_be_resolved_is_not_waited_for(monkeypatch):
    """A broken resolver takes half a minute; a plan does not."""

    def never(*_arguments, **_options):
        time.sleep(3)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", never)
    start_s = time.monotonic()

    assert not is_reachable("https://hub.invalid", 0.1)
    assert time.monotonic() - start_s < 2
    assert not is_reachable("https://hub.invalid/again", 60)
    assert time.monotonic() - start_s < 2


def test_the_proxy_is_what_must_be_reachable(monkeypatch):
    """Behind a company's proxy the hub itself never answers."""
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen(1)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert is_reachable("https://hub.invalid", 2)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert not is_reachable(f"https://127.0.0.1:{free_port()}", 2)
    assert not is_reachable("https://", 0.1)
    assert not is_reachable("http://127.0.0.1:notaport", 0.1)


def test_the_token_goes_to_the_hub_and_nowhere_else(hub, read, monkeypatch, files):
    """A redirect to a store keeps the token back, and no message shows it."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    store = FakeHub(repos={REPO: files})
    store.start()
    name = "config.json"
    hub.file_faults.append(Fault(status=302, headers={"Location": f"{store.url}/{REPO}/resolve/main/{name}"}))
    try:
        found = read()
    finally:
        store.stop()

    assert set(hub.tokens) == {f"Bearer {SECRET}"}
    assert store.tokens == [None]
    assert SECRET not in repr(found)


def absurd_header(length: int) -> bytes:
    return length.to_bytes(8, "little") + b"{}"


@pytest.mark.parametrize(
    "damage",
    [
        absurd_header(1 << 62),
        absurd_header(90_000_000),
        absurd_header(40_000_000),
        b"",
        b"PK\x03\x04",
        (500).to_bytes(8, "little") + b'{"a":',
        (2).to_bytes(8, "little") + b"[]",
        b"<html>" * 100,
    ],
    ids=["2^62", "90 MB", "longer than the file", "empty", "zip", "cut", "list", "web page"],
)
def test_headers_that_are_none_leave_the_configs_sizes(hub, read, damage):
    """A damaged shard on the hub is a warning; nothing huge is fetched for it."""
    hub.repos[REPO]["model-00002-of-00002.safetensors"] = damage

    found = read()

    assert warning_codes(found) == ["no_headers"]
    assert found.facts.num_layers == 4
    assert hub.bytes_sent["model-00002-of-00002.safetensors"] < 2 << 20


def test_a_header_that_promises_more_than_the_file_has_is_not_believed(hub, read):
    """A shard that was cut off on its way to the hub is noticed."""
    hub.lying_sizes["model-00002-of-00002.safetensors"] = 5000

    assert warning_codes(read()) == ["no_headers"]


def test_a_shard_that_the_hub_lacks_is_named(hub, read):
    """An upload that is still going on is not planned as if it were whole."""
    del hub.repos[REPO]["model-00002-of-00002.safetensors"]

    (warning,) = read().warnings
    assert "model-00002-of-00002.safetensors" in warning.text


def test_a_broken_connection_is_made_again(hub, read):
    """A flaky line costs a request, not the facts."""
    hub.file_faults += [Fault(cut_after=10), Fault(hang_s=1)]

    assert read().facts.basis == "measured from the files"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"[1]", "holds a list"), (b"<html>", "web page"), (b"{}", "isn't a model's")],
    ids=["empty", "list", "web page", "nothing in it"],
)
def test_a_config_on_the_hub_that_is_none_is_one_sentence(hub, read, content, said):
    """The repository is named, not a line of JSON."""
    hub.repos[REPO]["config.json"] = content

    with pytest.raises(StackFileError, match=said) as caught:
        read()
    assert REPO in caught.value.message


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter"),
        (["params.json", "consolidated.safetensors"], "Mistral's own format"),
        (["config.json", "onnx/model.onnx"], "ONNX"),
        (["model_index.json", "unet/config.json"], "pipeline"),
        (["README.md"], r"no config\.json"),
    ],
    ids=["adapter", "mistral", "onnx", "diffusers", "empty"],
)
def test_a_repository_that_is_no_model_is_called_by_its_name(hub, read, names, said):
    """The reader learns what the repository is."""
    hub.repos[REPO] = dict.fromkeys(names, b"{}")

    with pytest.raises(StackFileError, match=said):
        read()


def test_a_repository_of_gguf_files_is_left_to_llama_cpp(hub, read):
    """Its name need not end in -GGUF."""
    hub.repos[REPO] = {"m.Q8_0.gguf": b"GGUF", "config.json": b"{}"}

    assert read() == GgufSource(checkpoint=REPO)


def test_a_partly_cached_repository_is_completed_from_the_hub(hub, read, tmp_path):
    """The hub's headers are better than a cache without weights."""
    snapshot = cache_snapshot(tmp_path / "shared", REPO)
    (snapshot / "config.json").write_text(json.dumps(TINY))

    assert read().origin == "hub"
    hub.stop()
    hub.start()  # another port: the mirror is gone
    assert read(revision="main").origin in {"hub cache", "hub"}


def test_a_repository_without_weights_is_planned_and_said_to_have_none(hub, read):
    """Architecture-only repositories are of use to a planner, and to nobody else."""
    hub.repos[REPO] = {"config.json": json.dumps(TINY).encode()}

    assert warning_codes(read()) == ["no_weights"]


def scope(monkeypatch, hub: FakeHub) -> None:
    """The fake hub is ModelScope; Hugging Face is where nobody listens."""
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")


def test_modelscope_gives_the_same_facts(hub, read, monkeypatch, files):
    """VLLM_USE_MODELSCOPE plans from ModelScope, with its own token and without Hugging Face's."""
    expected = read()
    scope(monkeypatch, hub)
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-secret")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    hub.tokens.clear()
    hub.cookies.clear()

    found = read()

    assert (found.origin, found.revision) == ("modelscope", COMMIT)
    assert (found.facts, found.tensors, found.chat_template) == (
        expected.facts, expected.tensors, expected.chat_template,
    )  # fmt: skip
    assert set(hub.tokens) == {None}
    assert set(hub.cookies) == {"m_session_id=ms-secret"}


def test_modelscope_stands_in_for_an_unreachable_hub(hub, read, monkeypatch):
    """Where Hugging Face cannot be reached, the plan says from where its facts are."""
    scope(monkeypatch, hub)

    found = read()

    assert found.origin == "modelscope"
    assert warning_codes(found) == ["modelscope_instead"]


def test_a_name_that_the_hub_does_not_know_is_told_to_nobody_else(hub, read, monkeypatch):
    """A private repository's name stays between its owner and one hub."""
    other = FakeHub()
    other.start()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", other.url)
    try:
        with pytest.raises((StackFileError, EnvironmentMissingError)):
            read("org/private")
        assert other.listings == 0
    finally:
        other.stop()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(status=404), StackFileError),
        (Fault(status=403), EnvironmentMissingError),
        (Fault(status=502), EnvironmentMissingError),
        (Fault(body=b"<html>"), EnvironmentMissingError),
        (Fault(body=b'{"Code": 200, "Data": null}'), EnvironmentMissingError),
    ],
    ids=["404", "403", "5xx", "portal", "no files"],
)
def test_modelscope_faults_are_one_sentence_each(hub, read, monkeypatch, fault, error):
    """ModelScope's answers are told as plainly as the other hub's."""
    scope(monkeypatch, hub)
    hub.listing_faults += [fault] * 3

    with pytest.raises(error) as caught:
        read(source="modelscope")
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (
            ["README.md", "LICENSE", ".gitattributes", "config.json", "merges.txt", "chat_template.jinja",
             "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
             "model.safetensors.index.json", "model.safetensors", "consolidated.safetensors",
             "original/params.json", "onnx/model.onnx", "pytorch_model.bin", "pytorch_model.bin.index.json",
             "tokenizer.model", "m.gguf", "training_args.bin", "figures/a.png"],
            ["chat_template.jinja", "config.json", "merges.txt", "model.safetensors.index.json",
             "tokenizer.model", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        (["config.json", "model.safetensors"], ["config.json", "model.safetensors"]),
        (
            ["config.json", "pytorch_model-1.bin", "pytorch_model.bin.index.json", "optimizer.bin"],
            ["config.json", "pytorch_model.bin.index.json", "pytorch_model-1.bin"],
        ),
    ],
    ids=["everything at once", "one file", "pickled"],
)  # fmt: skip
def test_only_what_the_engine_needs_is_chosen(names, chosen):
    """Duplicates of the weights in other formats are not downloaded."""
    assert list(choose_engine_files(names)) == chosen


def test_the_stored_mask_is_read_over_the_network(hub, read, tmp_path):
    """A quantiser's config that is wrong is found out before a download."""
    config = TINY | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}}
    tensors = stored_tensors(config)
    spared = "model.layers.2.self_attn.o_proj"
    tensors[f"{spared}.weight"] = ("BF16", [64, 64])
    del tensors[f"{spared}.weight_scale_inv"]
    write_safetensors(tmp_path / "one.safetensors", tensors)
    hub.repos[REPO] = {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": (tmp_path / "one.safetensors").read_bytes(),
    }

    for _ in range(2):  # read, and remembered
        found = read()
        assert found.mask_origin == "safetensors headers"
        assert spared in found.facts.quant.ignored
