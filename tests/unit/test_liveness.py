"""When an engine that has answered before is taken for dead, and when it is not."""

from __future__ import annotations

import pytest

from trimtab.engines.progress import EngineProgress, read_progress
from trimtab.launcher.liveness import (
    Health,
    LivenessLimits,
    LivenessState,
    Look,
    choose_pause_s,
    follow,
    judge,
    wants_generation,
)

LIMITS = LivenessLimits(still_s=2, idle_still_s=4, stopped_s=3, quiet_s=7, busy_s=120, max_wrong=3, pause_s=9)


def counters(tokens: float, *, running: int = 1, answer_is_life: bool = False) -> EngineProgress:
    return EngineProgress(
        marks=(("tokens", tokens),), num_running=running, num_waiting=0, answer_is_life=answer_is_life
    )


def watch(*, seconds: int, cores: float | None = None, **every) -> tuple[float, str]:
    """Look once a second at what stays the same; gives when it was taken for dead, and why."""
    state, reason = LivenessState(alive_at_s=0, looked_at_s=0), ""
    for second in range(1, seconds + 1):
        cpu_s = None if cores is None else cores * second
        look = Look(at_s=second, cpu_s=cpu_s, **{"health": Health.OK, **every})
        state = follow(state, look, LIMITS)
        reason = judge(state, look, LIMITS)
        if reason:
            return second, reason
    return seconds, reason


@pytest.mark.parametrize(
    ("every", "cores", "within_s", "reason"),
    [
        pytest.param({}, 0.0, 10, "processes rest", id="hangs-at-rest"),
        pytest.param({"progress": counters(5)}, 0.0, 10, "processes rest", id="counters-stand-still"),
        pytest.param({"health": Health.LATE, "detail": "no answer"}, 0.0, 10, "no answer", id="api-hangs"),
        pytest.param({"stopped_pids": (7,)}, 0.0, 4, "stopped process 7", id="stopped-by-signal"),
        pytest.param(
            {"health": Health.WRONG, "detail": "HTTP 503"}, 1.0, 4, "HTTP 503", id="says-it-is-dead"
        ),
        pytest.param({}, 1.0, 121, "processes are busy", id="hang-that-spins"),
        pytest.param({}, None, 121, "processes are busy", id="processes-cannot-be-seen"),
    ],
)
def test_a_dead_engine_is_found_within_its_limit(every, cores, within_s, reason):
    """Each way to die behind a live API is found in a stated time, and named."""
    at_s, said = watch(seconds=200, cores=cores, **every)
    assert reason in said
    assert at_s <= within_s


@pytest.mark.parametrize(
    ("every", "cores"),
    [
        pytest.param({"progress": counters(1, answer_is_life=True)}, 0.0, id="the-loop-itself-answers"),
        pytest.param({"has_generated": True}, 0.0, id="generates"),
        pytest.param({"health": Health.UNKNOWN}, 0.0, id="we-cannot-ask"),
    ],
)
def test_a_working_engine_lives_for_hours(every, cores):
    """No limit is ever reached by an engine that gives signs of life, or that could not be asked."""
    assert watch(seconds=7200, cores=cores, **every)[1] == ""


def test_a_long_step_is_given_time_while_its_processes_compute():
    """A step of a hundred seconds on a busy card is no death."""
    assert watch(seconds=110, cores=1.0, progress=counters(5))[1] == ""


def test_waiting_for_a_disk_is_not_resting():
    """Weights that are paged in again keep an engine silent without using the CPU."""
    assert watch(seconds=110, cores=0.0, num_in_kernel=1)[1] == ""


def test_moving_counters_make_slow_health_harmless():
    """Under load /health may be late for minutes, while tokens come out."""
    state = LivenessState(alive_at_s=0, looked_at_s=0)
    for second in range(1, 600):
        look = Look(at_s=second, health=Health.LATE, progress=counters(second))
        state = follow(state, look, LIMITS)
        assert judge(state, look, LIMITS) == ""
        assert not wants_generation(state, LIMITS, now_s=second)


def test_pauses_between_steps_raise_the_limit():
    """An engine whose steps take five seconds under load may rest for ten."""
    state = LivenessState(alive_at_s=0, looked_at_s=0, marks=(("tokens", 0.0),), has_work=True)
    state = follow(state, Look(at_s=5, health=Health.OK, progress=counters(1)), LIMITS)
    assert state.longest_step_s == 5
    verdicts = {}
    for second in range(6, 20):
        look = Look(at_s=second, health=Health.OK, progress=counters(1), cpu_s=0.0)
        state = follow(state, look, LIMITS)
        verdicts[second] = judge(state, look, LIMITS)
    assert (verdicts[14], verdicts[15] != "") == ("", True)


def test_an_observer_that_was_held_up_concludes_nothing():
    """A trimtab that was itself stopped for a minute does not blame the engines."""
    state = LivenessState(alive_at_s=0, looked_at_s=0)
    look = Look(at_s=60, health=Health.OK, cpu_s=0.0)
    state = follow(state, look, LIMITS)
    assert judge(state, look, LIMITS) == ""


def test_a_generation_is_asked_for_only_in_silence():
    """A busy engine is not given work for the sake of watching it."""
    fresh = LivenessState(alive_at_s=9, looked_at_s=10)
    still = LivenessState(alive_at_s=8, looked_at_s=10)
    asked = [wants_generation(state, LIMITS, now_s=10) for state in (fresh, still)]
    assert asked == [False, True]


def test_an_engine_without_work_is_left_alone_for_longer():
    """An idle engine's log is not filled, and its cards are not woken, by being asked all the time."""
    idle = LivenessState(alive_at_s=8, looked_at_s=8, is_idle=True)
    busy = LivenessState(alive_at_s=8, looked_at_s=8)
    pauses = {
        name: [choose_pause_s(state, LIMITS, now_s=now_s, interval_s=1.5) for now_s in (8.5, 13)]
        for name, state in (("idle", idle), ("busy", busy))
    }
    assert pauses == {"idle": [3.5, 0.75], "busy": [1.5, 0.75]}
    assert not wants_generation(idle, LIMITS, now_s=11)
    assert wants_generation(idle, LIMITS, now_s=12)


@pytest.mark.parametrize(
    ("progress", "is_idle"),
    [
        pytest.param(counters(1, running=0), True, id="no-request"),
        pytest.param(counters(1, running=1), False, id="a-request"),
        pytest.param(counters(1, running=0, answer_is_life=True), False, id="its-answer-is-life"),
        pytest.param(None, False, id="no-counters"),
    ],
)
def test_only_counters_say_that_an_engine_is_without_work(progress, is_idle):
    """What cannot be read is watched closely."""
    state = LivenessState(alive_at_s=0, looked_at_s=0)
    look = Look(at_s=1, health=Health.OK, progress=progress)
    assert follow(state, look, LIMITS).is_idle is is_idle


def test_an_idle_engine_that_hangs_is_found_in_the_look_that_asks_it():
    """A look that waited for answers in vain knows already that the processes rested meanwhile."""
    state = LivenessState(alive_at_s=0, looked_at_s=0, is_idle=True)
    look = Look(at_s=7.1, health=Health.LATE, detail="no answer", cpu_before=(4.0, 9.0), cpu_s=9.01)
    state = follow(state, look, LIMITS)
    assert "processes rest, no answer" in judge(state, look, LIMITS)


VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1234.0
vllm:generation_tokens_total{engine="1",model_name="tiny"} 6.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1e+06
vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 9.0
python_gc_objects_collected_total{generation="0"} 12154.0
"""
LLAMA_CPP = "llamacpp:tokens_predicted_total 12\nllamacpp:requests_processing 1\nllamacpp:n_decode_total 7\n"


def test_progress_counts_what_only_the_engine_core_can_move():
    """An aborted client or a collected object is no sign that the engine works."""
    read = read_progress(VLLM)
    assert dict(read.marks) == {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:generation_tokens_total": 1240,
        "vllm:prompt_tokens_total": 1_000_000,
    }
    assert (read.num_running, read.num_waiting, read.answer_is_life) == (2, 1, False)


def test_llama_cpp_counts_are_answered_by_the_loop_itself():
    """llama.cpp's /metrics come from the loop that computes."""
    read = read_progress(LLAMA_CPP)
    assert (read.num_running, read.answer_is_life) == (1, True)


@pytest.mark.parametrize(
    "text", ["", "<html>", "vllm:prompt_tokens_total nan", "vllm:prompt_tokens_total 1e999", "a 1\n" * 9]
)
def test_foreign_metrics_count_as_none(text):
    """A server with other metrics is watched without counters."""
    assert read_progress(text) is None
