"""An engine whose answer never ends takes neither the gateway's memory nor the client's time."""

import pytest


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp"])
async def test_an_endless_whole_answer_is_a_502(make_front, monkeypatch, engine):
    """It is read up to a bound, and the client is told that it was longer."""
    monkeypatch.setattr("trimtab.gateway.http_client._MAX_WHOLE_BYTES", 1_000_000)
    front = await make_front(engine=engine)
    async with front.post(script="endless_body") as answer:
        error = (await answer.json())["error"]
    assert answer.status == 502
    assert "longer than 1,000,000 bytes" in error["message"]
    assert front.engine.num_written_bytes < 20_000_000
    async with front.post(script="ordinary") as answer:
        assert answer.status == 200
