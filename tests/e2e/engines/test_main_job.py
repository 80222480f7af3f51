"""The main job with everything real: llama.cpp, the embedded model, the openai SDK."""

import signal
import subprocess
import time

import openai
import psutil
import pytest
from trimtab_program import Program, ask, chat, read_ready

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One foreground `up` for the tests that only ask it things."""
    program = Program(tmp_path_factory.mktemp("up"))
    process = program.up()
    yield program, read_ready(process)["endpoint"]
    program.close()


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.close()


@pytest.fixture
def sdk(running):
    with openai.OpenAI(base_url=running[1], api_key="unused", max_retries=0) as client:
        yield client


def test_models_lists_the_served_name(sdk):
    """The SDK finds the model by the name that the README uses."""
    assert [model.id for model in sdk.models.list()] == ["smollm2-135m"]


def test_chat_streamed_and_whole_are_the_same_text(sdk):
    """Greedy decoding gives one text, however it is asked for, and usage in both."""
    options = {"model": "smollm2-135m", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = sdk.chat.completions.create(**options)
    chunks = list(sdk.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))

    text = "".join(piece.choices[0].delta.content or "" for piece in chunks if piece.choices)
    assert whole.choices[0].message.content == text
    assert text.strip()
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12


def test_completions_continue_the_prompt(sdk):
    """The plain completion endpoint answers with the model's own text."""
    answer = sdk.completions.create(model="smollm2-135m", prompt="1, 2, 3, 4,", max_tokens=6, temperature=0)

    assert "5" in answer.choices[0].text


def test_a_client_that_leaves_frees_the_engine(sdk, running):
    """A cancelled stream ends the engine's work: the next request does not wait for it."""
    stream = sdk.chat.completions.create(model="smollm2-135m", messages=HELLO, max_tokens=4000, stream=True)
    next(iter(stream))
    stream.close()

    assert chat(running[1])


def test_unknown_model_is_a_404_for_the_sdk(sdk):
    """A mistyped name is the SDK's NotFoundError, with the known names in its text."""
    with pytest.raises(openai.NotFoundError, match="smollm2-135m"):
        sdk.chat.completions.create(model="nope", messages=HELLO)


def test_max_tokens_is_capped_and_said(sdk):
    """A limit larger than the room is lowered, and the header says to what."""
    limit = sdk.models.list().data[0].max_model_len
    raw = sdk.chat.completions.with_raw_response.create(
        model="smollm2-135m", messages=HELLO, max_tokens=limit, stop=["."]
    )

    assert 0 < int(raw.headers["x-trimtab-max-tokens-capped"]) < limit


def test_prompt_beyond_the_context_is_refused(running):
    """A prompt that cannot fit is a 400, not a silently cut one."""
    status, document = ask(running[1], {"messages": [{"role": "user", "content": "word " * 9000}]})

    assert status == 400
    assert "8,192" in document["error"]["message"] or "8192" in document["error"]["message"]


def test_status_shows_memory_predicted_and_measured(running):
    """The plan's memory is within a tenth of what the engine really holds."""
    program, endpoint = running
    chat(endpoint)

    document = program.run_json("status")

    replica = document["replicas"][0]
    assert document["endpoint"] == endpoint
    assert document["models"]["smollm2-135m"]["state"] == "ready"
    assert replica["rss_bytes"] == pytest.approx(replica["predicted_bytes"], rel=0.10)


def test_a_second_up_of_the_same_stack_keeps_what_runs(running):
    """Nothing differs, so nothing restarts; the command says what serves, and ends."""
    second = running[0].run("up", "--port", "0")

    assert second.returncode == 0, second.stderr
    assert "nothing had to change" in second.stdout


def test_a_second_up_of_another_stack_names_the_first(running, tmp_path):
    """One state folder has one supervisor; the second is told who it is."""
    stack = tmp_path / "other.yaml"
    stack.write_text("models: {other: {checkpoint: smollm2-135m}}")
    second = running[0].run("up", str(stack), "--port", "0")

    assert second.returncode == 4
    assert "already supervised by process" in second.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_stops_everything(program, number):
    """Ctrl-C and SIGTERM end a foreground run with exit code 0 and nothing left."""
    process = program.up()
    read_ready(process)

    process.send_signal(number)

    assert process.wait(timeout=30) == 0
    program.wait_empty(2)


def test_a_signal_while_starting_stops_everything(program):
    """A run that is not ready yet can be stopped just as well."""
    process = program.up()
    while not program.state.joinpath("supervisor.json").exists():
        assert process.poll() is None, process.stderr.read()

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=30) == 0
    program.wait_empty(2)


def test_down_ends_a_foreground_up_with_success(program):
    """`down` in another terminal stops a foreground run, which then exits 0."""
    process = program.up()
    read_ready(process)

    down = program.run("down")

    assert down.returncode == 0, down.stderr
    assert process.wait(timeout=5) == 0
    program.wait_empty(2)


def test_down_lets_a_stream_finish(program):
    """A request that is inside when `down` comes gets its whole answer."""
    process = program.up()
    endpoint = read_ready(process)["endpoint"]
    with openai.OpenAI(base_url=endpoint, api_key="unused", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="smollm2-135m", messages=HELLO, max_tokens=40, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        process.send_signal(signal.SIGTERM)
        pieces = list(stream)

    assert pieces[-1].choices[0].finish_reason == "length"
    assert process.wait(timeout=30) == 0


def test_detached_run_serves_until_down(program):
    """`up -d` returns when ready; status, logs and down find it."""
    up = program.run("up", "-d", "--port", "0", "--json")
    endpoint = program.run_json("status")["endpoint"]

    assert up.returncode == 0, up.stderr
    assert chat(endpoint)
    assert "listening on" in program.run("logs", "smollm2-135m").stdout
    assert program.run("down").returncode == 0
    program.wait_empty(2)
    assert program.run_json("status")["running"] is False


def test_detached_engine_is_adopted_after_kill_9(program):
    """A killed supervisor loses nothing: the next `up -d` takes over the same engine process."""
    program.run("up", "-d", "--port", "0")
    before = program.run_json("status")
    psutil.Process(before["supervisor"]["pid"]).kill()
    engine_pid = before["replicas"][0]["pid"]

    orphaned = program.run("status")
    again = program.run("up", "-d", "--port", "0")

    assert "engines it started are still running" in orphaned.stdout
    assert again.returncode == 0, again.stderr
    after = program.run_json("status")
    assert after["replicas"][0]["pid"] == engine_pid
    assert chat(after["endpoint"])


def test_down_reaps_what_a_killed_supervisor_left(program):
    """After kill -9 of a background run, `down` stops the engine and says so."""
    program.run("up", "-d", "--port", "0")
    psutil.Process(program.run_json("status")["supervisor"]["pid"]).kill()

    down = program.run("down")

    assert "left over" in down.stdout
    program.wait_empty(2)


def test_engine_that_dies_is_restarted(program):
    """SIGKILL of the engine costs a few seconds, not the endpoint."""
    process = program.up()
    endpoint = read_ready(process)["endpoint"]
    psutil.Process(program.run_json("status")["replicas"][0]["pid"]).kill()

    deadline = time.monotonic() + 30
    status = 0
    while status != 200 and time.monotonic() < deadline:
        status, document = ask(endpoint, {"messages": HELLO, "max_tokens": 4})
        assert status == 200 or document["error"]["origin"] == "gateway"
        time.sleep(0.05)

    assert status == 200
    assert program.run_json("status")["models"]["smollm2-135m"]["restarts"] == 1


def test_saved_plan_runs_as_reviewed(program):
    """`plan --out` then `up --plan` starts exactly the reviewed settings."""
    saved = program.root / "plan.json"
    program.run("plan", "--context", "1024", "--concurrency", "2", "--out", str(saved))

    process = program.up("--plan", str(saved))
    endpoint = read_ready(process)["endpoint"]

    with openai.OpenAI(base_url=endpoint, api_key="unused") as client:
        assert client.models.list().data[0].max_model_len == 1024


def test_two_models_share_one_endpoint(program):
    """A stack of two models is one endpoint with two names."""
    stack = program.root / "stack.yaml"
    stack.write_text(
        "models:\n"
        "  a: {checkpoint: smollm2-135m, context: 512, concurrency: 1}\n"
        "  b: {checkpoint: smollm2-135m, context: 1024, concurrency: 1}\n"
    )
    endpoint = read_ready(program.up(str(stack)))["endpoint"]

    for name in ("a", "b"):
        status, document = ask(endpoint, {"model": name, "messages": HELLO, "max_tokens": 4})
        assert (status, document["model"]) == (200, name)


def test_keys_close_the_endpoint(program):
    """With keys in the stack, only their holders are served; health stays open."""
    stack = program.root / "stack.yaml"
    stack.write_text("models: {m: {checkpoint: smollm2-135m, context: 512}}\ngateway: {keys: [hush]}\n")
    endpoint = read_ready(program.up(str(stack)))["endpoint"]

    with (
        openai.OpenAI(base_url=endpoint, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    with openai.OpenAI(base_url=endpoint, api_key="hush") as friend:
        assert friend.models.list().data[0].id == "m"


def test_a_taken_port_is_named_before_anything_starts(program):
    """The holder of the port is named, and no engine was started for nothing."""
    program_text = (
        "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "print(s.getsockname()[1]); time.sleep(60)"
    )
    holder = subprocess.Popen(["python3", "-u", "-c", program_text], stdout=subprocess.PIPE, text=True)
    port = holder.stdout.readline().strip()
    try:
        up = program.run("up", "--port", port)
    finally:
        holder.kill()
        holder.communicate()

    assert up.returncode == 4
    assert f"port {port}" in up.stderr
    assert str(holder.pid) in up.stderr
    program.wait_empty(2)
