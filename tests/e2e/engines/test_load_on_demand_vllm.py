"""Two real vLLM servers on a card that has room for one: swapped as requests come."""

from __future__ import annotations

import pytest
from engine_witness import EngineWitness
from mixed_clients import MixedClients, count_loads, fewest_loads
from trimtab_program import Program
from vllm_cpu import VERSION

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

# The card of the plan: a CPU build looks at none. Each model may have 0.6 of it.
CARD = "1xrtx4090"
UP_S = 600.0
MAX_WAIT_S = 1200
# Few, since a load takes half a minute.
ORDERS = [
    ["hybrid", "dense", "dense", "hybrid"],
    ["dense", "dense", "hybrid", "hybrid"],
    ["hybrid", "hybrid", "dense", "hybrid"],
]
STACK = """\
gateway: {{port: 0, limits: {{max_wait_s: {max_wait_s}}}}}
swap: {{sleep: off}}
models:
  hybrid:
    checkpoint: {hybrid}
    engine_version: "{version}"
    context: 2048
    concurrency: 4
    thinking: off
    engine_args: {{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024, gpu_memory_utilization: 0.6}}
  dense:
    checkpoint: {dense}
    engine_version: "{version}"
    context: 2048
    concurrency: 4
    thinking: off
    engine_args: {{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024, gpu_memory_utilization: 0.6}}
"""  # noqa: E501 - as in a stack file


@pytest.fixture
def program(vllm, tmp_path, monkeypatch):
    """The program with two tiny checkpoints, and nothing of it afterwards."""
    monkeypatch.setenv("TRIMTAB_VLLM", str(vllm.program))
    made = Program(tmp_path)
    (made.root / "stack.yaml").write_text(
        STACK.format(
            hybrid=vllm.checkpoint("qwen3_5_moe"),
            dense=vllm.checkpoint("qwen3"),
            version=VERSION,
            max_wait_s=MAX_WAIT_S,
        )
    )
    yield made
    made.close()


def test_mixed_requests_are_answered_with_few_swaps_and_never_by_both_at_once(program):
    """All answered in time, hardly more loads than the best order needs."""
    done = program.run("up", "stack.yaml", "--gpus", CARD, "-d", timeout_s=UP_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loaded on demand" in done.stdout
    endpoint = program.run_json("status")["endpoint"]
    witness = EngineWitness(program, ("hybrid", "dense"))
    witness.start()
    clients = MixedClients(endpoint, ORDERS)
    clients.run()
    witness.finish()

    loads, best = count_loads(endpoint), fewest_loads(ORDERS, first="hybrid")
    slowest_s = max(one.seconds for one in clients.asked)
    print(f"{len(clients.asked)} requests, {loads} loads (best order {best}), slowest {slowest_s:.0f} s")
    assert [one for one in clients.asked if one.status != 200] == []
    assert len(clients.asked) == sum(map(len, ORDERS))
    assert loads <= 1.5 * best
    assert slowest_s < MAX_WAIT_S
    assert witness.most == 1
    health = program.run_json("status")["models"]
    assert all(health[name]["load_s"] > 0 for name in ("hybrid", "dense"))
