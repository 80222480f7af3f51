"""Open WebUI in front of the whole program, in front of a real llama.cpp and an engine that thinks."""

import json
import time
import urllib.request

import open_webui
import pytest
from thinking_engine import ThinkingEngine
from trimtab_program import Program, read_ready

# One thread: two would wait for each other where other programs have the cores.
STACK = """
models:
  tiny:
    {{checkpoint: smollm2-135m, concurrency: 1, context: 4096,
      engine_args: {{n_threads: 1, n_threads_batch: 1}}}}
  thinker: {{url: "{url}", family: qwen3.5, concurrency: 1}}
"""


class House:
    """A stack that serves, its thinking engine, Open WebUI in front; ``chromium`` is None without one."""

    def __init__(self, program, engine, endpoint, key, webui, chromium):
        self.program, self.engine, self.endpoint, self.key = program, engine, endpoint, key
        self.webui, self.chromium = webui, chromium

    def page(self, model, text, **more):
        """One chat in the page, and what the thinking engine was asked by it, in the order it began."""
        if self.chromium is None:
            pytest.skip("no Chromium here: apt-get install chromium")
        before = len(self.engine.asked)
        seen = self.webui.chat(self.chromium, model=model, text=text, **more)
        self.settle()
        return seen, sorted(self.engine.asked[before:], key=lambda one: one.began_s)

    def settle(self):
        """Wait until what follows an answer (follow-ups, tags) is over."""
        quiet_s = 0.0
        while quiet_s < 1.0:
            time.sleep(0.1)
            busy = any(not one.ended for one in self.engine.asked) or self.metric(
                "trimtab_requests_in_flight"
            )
            quiet_s = 0.0 if busy else quiet_s + 0.1

    def metric(self, line_start):
        headers = {"Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(self.endpoint.removesuffix("/v1") + "/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(line_start))


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    folder, reason = open_webui.install()
    if folder is None:
        pytest.skip(f"no Open WebUI here: {reason}")
    root = tmp_path_factory.mktemp("webui")
    engine = ThinkingEngine().start()
    program = Program(root)
    (root / "stack.yaml").write_text(STACK.format(url=engine.url))
    key = program.run_json("keys", "add", "webui")["key"]
    try:
        endpoint = read_ready(program.up("stack.yaml"))["endpoint"]
        webui = open_webui.OpenWebUi(folder, root / "webui", endpoint, key).start()
        try:
            # Two hundred tokens of prompt instead of 6,900: tools are what the other model is for.
            webui.ask("/api/v1/models/create", json.loads(TINY))
            yield House(program, engine, endpoint, key, webui, open_webui.find_chromium())
        finally:
            webui.stop()
    finally:
        program.close()
        engine.stop()


# Few tokens, so that a busy machine is through with them, too; what makes a title of it has its own bound.
TINY = """{"id": "tiny", "base_model_id": null, "name": "tiny", "params": {"max_tokens": 32},
 "access_grants": [], "is_active": true, "meta": {"capabilities": {"builtin_tools": false}}}"""
