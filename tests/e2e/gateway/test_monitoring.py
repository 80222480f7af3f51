"""What Prometheus and the dashboard see."""

import asyncio
import json
import re
from pathlib import Path

from scripted_engine import eventually

from trimtab.core.state import ReplicaState, ServedReplica

DASHBOARD = Path(__file__).parents[3] / "examples" / "grafana" / "trimtab.json"


async def drain(front, **fields):
    async with front.post(model="m", **fields) as answer:
        await answer.read()
        return answer.status


async def test_tokens_and_times_are_counted_per_model(front):
    """Throughput and speed can be plotted, streamed or not."""
    await drain(front)
    await drain(front, stream=True, events=3, gap_s=0.02)

    assert await front.metric('trimtab_prompt_tokens_total{model="m"}') == 1
    # Of the stream, which tells no usage, each event counts: 3 words, the finish, [DONE].
    assert await front.metric('trimtab_generation_tokens_total{model="m"}') == 1 + 5
    assert await front.metric('trimtab_time_per_output_token_seconds_count{model="m"}') == 1
    mean_s = await front.metric('trimtab_time_per_output_token_seconds_sum{model="m"}')
    assert 0.005 <= mean_s < 5
    # Five events have four gaps, whose mean is the one above, but for the end of the connection.
    assert await front.metric('trimtab_inter_token_latency_seconds_count{model="m"}') == 4
    gaps_s = await front.metric('trimtab_inter_token_latency_seconds_sum{model="m"}')
    assert 0.04 <= gaps_s <= 4 * mean_s
    assert 0 < await front.metric('trimtab_time_to_first_token_seconds_sum{model="m"}') < 5


async def test_rejections_are_counted_by_reason(front):
    """Whoever watches sees what is refused, and why."""
    await drain(front, max_tokens=99_999)
    async with front.post(model="nobody") as answer:
        assert answer.status == 404

    assert await front.metric('trimtab_rejections_total{model="m",reason="max_tokens_exceeded"}') == 1
    assert await front.metric('trimtab_rejections_total{model="",reason="model_not_found"}') == 1


async def test_running_waiting_and_replicas_are_shown(make_front):
    """A queue that grows is seen before users complain."""
    front = await make_front(concurrency=1)
    replicas = tuple(
        ServedReplica(replica_id=name, state=ReplicaState.READY, base_url=front.engine.url) for name in "ab"
    )
    front.models[0] = type(front.models[0])(
        name="m", engine="vllm", state=ReplicaState.READY, base_url=front.engine.url, concurrency=1,
        replicas=replicas)  # fmt: skip
    tasks = [asyncio.ensure_future(drain(front, script="hang")) for _ in range(5)]
    await eventually(lambda: len(front.engine.requests) == 2)

    assert await front.metric('trimtab_requests_running{model="m"}') == 2
    assert await front.metric('trimtab_requests_waiting{model="m"}') == 3
    assert await front.metric('trimtab_replica_requests_in_flight{model="m",replica="a"}') == 1
    assert await front.metric('trimtab_replica_ready{model="m",replica="b"}') == 1
    for task in tasks:
        task.cancel()


async def test_the_dashboard_asks_for_series_that_exist(make_front):
    """No panel of the dashboard is empty because of a name."""
    front = await make_front(concurrency=1)
    await drain(front, stream=True, events=3)
    async with front.session.get(front.url + "/metrics") as answer:
        text = await answer.text()
    known = set(re.findall(r"^# TYPE (trimtab_\w+)", text, re.MULTILINE))
    asked = set(re.findall(r"trimtab_\w+", json.dumps(json.loads(DASHBOARD.read_text())["panels"])))

    assert asked
    # Counters are named without _total where their type is told in the older format.
    assert {re.sub(r"_bucket$", "", name) for name in asked} <= known | {f"{name}_total" for name in known}
