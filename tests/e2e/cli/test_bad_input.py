"""Bad input on the command line: one clear sentence, the right exit code, nothing started, nothing lost."""

import json
import os
from pathlib import Path

import pytest
from small_checkpoint import write_model
from trimtab_program import Program


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path, is_warm=True)


def refused(program, *arguments, **options):
    """Run a command that must be refused; gives its exit code and stderr."""
    done = program.run(*arguments, **options)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not program.processes()
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        pytest.param(
            "models: {a: {checkpont: x.gguf}}", ["models.a.checkpont", "'checkpoint'"], id="unknown-key"
        ),
        pytest.param(
            "models: {a: {checkpoint: x.gguf, context: big}}", ["models.a.context", '"big"'], id="type"
        ),
        pytest.param(
            "models:\n  a: {checkpoint: x}\n  a: {checkpoint: y}\n", ["'a'", "lines 2 and 3"], id="twice"
        ),
        pytest.param(
            "models: {a: {checkpoint: x, slo: 1}}",
            ["models.a.slo", "not supported"],
            id="planned",
        ),
        pytest.param(
            "models: {a: {checkpoint: x.gguf}}\ngateway: {port: 70000}", ["gateway.port", "70000"], id="port"
        ),
        pytest.param(
            "models: {a: {checkpoint: nowhere.gguf}}", ["nowhere.gguf", "does not exist"], id="no-file"
        ),
        pytest.param(
            "models: {a: {checkpoint: smollm2-135m, engine_args: {n_thread: 2}}}",
            ["models.a.engine_args.n_thread", "n_threads"],
            id="unknown-setting",
        ),
        pytest.param(
            "models: {a: {checkpoint: smollm2-135m, context: 99999}}",
            ["99,999", "8,192"],
            id="beyond-training",
        ),
        pytest.param(
            "models: {a: {checkpoint: x}}",
            ["models.a.checkpoint", "'x' is neither a file"],
            id="no-such-thing",
        ),
        pytest.param("models: [", ["not YAML", "line 1"], id="yaml"),
    ],
)
def test_a_faulty_stack_names_the_place(program, stack, words):
    """Whoever mistypes a stack reads which key, which value and what is legal; exit code 2."""
    path = program.root / "stack.yaml"
    path.write_text(stack)

    code, text = refused(program, "up", str(path), "--port", "0")

    assert code == 2
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"PK\x03\x04 and more of a zip file", "is not a GGUF file", id="other-format"),
        pytest.param(b"GGUF\x03\x00\x00\x00", "is cut off", id="truncated"),
        pytest.param(b"GGUF\x01\x00\x00\x00" + bytes(40), "GGUF version 1", id="old-version"),
        pytest.param(b"GGUF\x00\x00\x00\x03" + bytes(40), "big-endian", id="big-endian"),
    ],
)
def test_a_broken_checkpoint_is_named(program, content, words):
    """A file that is no whole model is refused before anything starts."""
    path = program.root / "m.gguf"
    path.write_bytes(content)

    code, text = refused(program, "up", str(path), "--port", "0")

    assert code == 2
    assert words in text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["up", "nowhere.gguf"], 2, "does not exist", id="missing-file"),
        pytest.param(["up", "no-such-name"], 2, "neither a file", id="bare-name"),
        pytest.param(["up", "smollm2"], 2, "did you mean smollm2-135m", id="near-name"),
        pytest.param(["up", "org/repo-GGUF"], 4, "HF_HUB_OFFLINE", id="offline-repo"),
        pytest.param(["up", "--context", "0"], 2, "--context", id="zero-context"),
        pytest.param(["up", "--port", "99999"], 2, "--port", id="port-range"),
        pytest.param(["up", "--set", "n_threads"], 2, "NAME=VALUE", id="pin-without-value"),
        pytest.param(["up", "--set", "n_threads=many"], 2, "n_threads", id="pin-of-wrong-type"),
        pytest.param(["up", "--ram", "lots"], 2, "--ram", id="ram"),
        pytest.param(["up", "--ram", "100MiB"], 3, "hint: would fit", id="does-not-fit"),
        pytest.param(["plan", "--bogus"], 2, "no such option", id="unknown-flag"),
        pytest.param(["up", "--plan", "nowhere.json"], 2, "cannot be read", id="no-plan"),
        pytest.param(["up", "--plan", "p.json", "--context", "5"], 2, "would change it", id="plan-changed"),
        pytest.param(["logs", "ghost"], 2, "no log of 'ghost'", id="unknown-log"),
        pytest.param(["logs", "-f", "--json"], 2, "never ends", id="endless-json"),
        pytest.param(["up", "--host", "no.such.invalid", "--port", "0"], 4, "no address of this", id="host"),
    ],
)  # fmt: skip
def test_a_wrong_argument_gets_one_sentence(program, arguments, code, words):
    """Every refusal says what was wrong and leaves nothing running."""
    assert refused(program, *arguments)[0] == code
    assert words in refused(program, *arguments)[1]


def test_a_state_folder_that_cannot_be_written_is_named(program):
    """A folder in the way is named, with the variable that moves it."""
    (program.root / "state").write_text("a file where a folder belongs")

    code, text = refused(program, "up", "--port", "0")

    assert code == 4
    assert str(program.root / "state") in text


def test_a_failure_with_json_is_one_document(program):
    """Scripts read the failure from stdout, people from stderr."""
    done = program.run("plan", "nowhere.gguf", "--json")

    document = json.loads(done.stdout)
    assert document["error"]["exit_code"] == done.returncode == 2
    assert "nowhere.gguf" in document["error"]["message"]


def test_a_misfit_with_json_is_the_whole_plan(program):
    """A plan that does not fit is still data, with what would fit; exit code 3."""
    done = program.run("plan", "--ram", "100MiB", "--json")

    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert document["fits"] is False
    assert document["nearest_fit"]
    assert document["models"]["smollm2-135m"]["replicas"][0]["host"]["requested_bytes"] > 100 * 2**20


def test_nothing_running_is_no_failure(program):
    """`status`, `down` and `logs` of an empty folder say so and succeed."""
    for verb in ("status", "down", "logs"):
        done = program.run(verb)
        assert done.returncode == 0, done.stderr

    assert program.run_json("status")["running"] is False
    assert not program.state.exists()


@pytest.mark.parametrize(
    "verb", ["up", "plan", "status", "logs", "down", "pull", "rm", "doctor", "completion"]
)
def test_every_verb_explains_itself_with_examples(program, verb):
    """`--help` of each verb shows how it is used."""
    text = program.run(verb, "--help").stdout

    assert "Examples:" in text
    assert f"trimtab {verb}" in text


def test_doctor_finds_a_port_that_is_taken(program):
    """Doctor names what would keep `up` from working, and its exit code says so."""
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = program.run("doctor", "--port", str(port), "--json")

    finding = next(item for item in json.loads(done.stdout)["findings"] if item["code"] == "port")
    assert (done.returncode, finding["severity"]) == (4, "error")
    assert str(os.getpid()) in finding["text"]


def test_completion_completes_verbs(program):
    """The printed script asks trimtab itself, which knows its verbs."""
    assert "_TRIMTAB_COMPLETE" in program.run("completion", "bash").stdout


def test_output_into_a_closed_pipe_is_no_traceback(program):
    """`trimtab plan --json | head -1` stays quiet."""
    import subprocess
    import sys

    command = f"{sys.executable} -m trimtab plan --json | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env=program.environment(), capture_output=True, text=True, check=False
    )

    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("[" * 100_000, "not JSON", id="nested"),
        pytest.param("{}", "not a saved plan", id="empty"),
        pytest.param('{"schema": 99}', "schema", id="other-schema"),
    ],
)
def test_a_broken_saved_plan_is_refused(program, content, words):
    """`up --plan` of anything else than a plan says so."""
    path = program.root / "p.json"
    path.write_text(content)

    code, text = refused(program, "up", "--plan", str(path), "--dry-run")

    assert code == 2
    assert words in text


def with_model(plan, **changes):
    return plan | {"models": {"m": plan["models"]["smollm2-135m"] | changes}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda plan: plan | {"models": {}}, "there is none", id="no-model"),
        pytest.param(
            lambda plan: with_model(plan, argv=[]),
            "argv",
            id="no-argv",
        ),
        pytest.param(
            lambda plan: with_model(plan, env={"TRIMTAB_X": "1"}),
            "TRIMTAB_X",
            id="own-variable",
        ),
    ],
)
def test_a_tampered_plan_is_refused(program, change, words):
    """A saved plan that trimtab cannot have made is not run."""
    path = program.root / "p.json"
    path.write_text(json.dumps(change(program.run_json("plan"))))

    code, text = refused(program, "up", "--plan", str(path), "--dry-run")

    assert code == 2
    assert words in text


def test_a_plan_that_never_ends_is_refused(program):
    """A device instead of a file does not fill the memory."""
    assert "is not a file" in refused(program, "up", "--plan", "/dev/zero")[1]


def test_absurd_sizes_and_hosts_get_one_sentence(program):
    """Numbers and names beyond sense are refused as any other wrong input."""
    assert refused(program, "plan", "--ram", "9" * 5000 + "GiB")[0] == 2
    assert refused(program, "up", "--host", "..", "--port", "0")[0] == 4


def test_a_full_output_is_no_traceback(program):
    """Printing to a full disk is exit code 4 without a traceback."""
    import subprocess
    import sys

    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m trimtab plan > /dev/full"],
        env=program.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "Traceback" not in done.stderr


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a card")
@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("-d",)], ids=["up", "dry-run", "detached"])
def test_a_plan_for_cards_that_are_not_here_is_refused_before_it_is_shown(program, flags):
    """No plan to read as a promise, the same words from a dry run, and where it would run."""
    model = write_model(program.root / "model")

    done = program.run("up", str(model), "--gpus", "4xrtx4090", *flags)

    assert done.returncode == 4
    assert "plan:" not in done.stdout + done.stderr
    assert "this machine lacks it" in done.stderr
    assert "machine with such cards" in done.stderr


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a card")
def test_without_a_card_the_hint_says_what_works_here(program):
    """Naming cards that are not here would only lead to the next refusal."""
    model = write_model(program.root / "model")

    code, text = refused(program, "up", str(model))

    assert code == 3
    assert "on the CPU, name a GGUF file" in text
    assert "trimtab plan ... --gpus" in text
