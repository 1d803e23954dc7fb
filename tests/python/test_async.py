"""AsyncLLM, by asyncio alone."""

from __future__ import annotations

import asyncio
from typing import AsyncIterator

import pytest

from quire import AsyncLLM, EngineError, InvalidRequestError, LLM, RequestOutputKind, SamplingParams

ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


def run(body):
    """Runs it with an engine of its own, for a minute at most."""

    async def main():
        async with AsyncLLM(max_model_len=512, max_num_seqs=8) as llm:
            await body(llm)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_stream_grows_to_what_a_batch_says(llm: LLM, greedy):
    [expected] = llm.generate("What is Quire?", greedy, use_tqdm=False)

    async def body(engine: AsyncLLM):
        seen = [output async for output in engine.generate("What is Quire?", greedy, "mine")]
        texts = [output.outputs[0].text for output in seen]
        assert len(seen) > 2 and all(b.startswith(a) for a, b in zip(texts, texts[1:]))
        assert [output.finished for output in seen] == [False] * (len(seen) - 1) + [True]
        assert seen[-1].outputs[0].token_ids == expected.outputs[0].token_ids
        assert texts[-1] == expected.outputs[0].text and seen[-1].request_id == "mine"

    run(body)


def test_deltas_add_up_and_final_only_is_one():
    async def body(engine: AsyncLLM):
        def params(kind):
            return SamplingParams(temperature=0, max_tokens=12, logprobs=1, n=1, output_kind=kind)

        whole = [o async for o in engine.generate("The KV cache", params(RequestOutputKind.FINAL_ONLY))]
        assert len(whole) == 1 and whole[0].finished
        parts = [o.outputs[0] async for o in engine.generate("The KV cache", params(RequestOutputKind.DELTA))]
        assert len(parts) > 2
        assert "".join(part.text for part in parts) == whole[0].outputs[0].text
        assert sum((part.token_ids for part in parts), []) == whole[0].outputs[0].token_ids
        assert sum((part.logprobs for part in parts), []) == whole[0].outputs[0].logprobs

    run(body)


def test_many_at_once_are_told_apart():
    async def body(engine: AsyncLLM):
        async def last(prompt: str):
            output = None
            async for output in engine.generate(prompt, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)):
                pass
            return output

        prompts = [f"number {i} is" for i in range(24)]
        outputs = await asyncio.gather(*map(last, prompts))
        assert [output.prompt for output in outputs] == prompts
        alone = await last(prompts[5])
        assert alone.outputs[0].token_ids == outputs[5].outputs[0].token_ids

    run(body)


def test_a_chat_streams(llm: LLM, greedy):
    messages = [{"role": "user", "content": "What is Quire?"}]
    [expected] = llm.chat(messages, greedy, use_tqdm=False)

    async def body(engine: AsyncLLM):
        seen = [output async for output in engine.chat(messages, greedy)]
        assert seen[-1].outputs[0].text == expected.outputs[0].text

    run(body)


async def idle(engine: AsyncLLM) -> bool:
    """Whether the engine comes to rest: it computes no more tokens."""
    from quire import _native

    before = -1.0
    for _ in range(100):
        now = _native.stats(engine._core.handle)["decode_tokens"]
        if now == before:
            return True
        before = now
        await asyncio.sleep(0.1)
    return False


def test_a_generator_that_is_left_or_cancelled_ends_its_request():
    async def body(engine: AsyncLLM):
        async for _ in (stream := engine.generate("a", ENDLESS)):
            break
        await stream.aclose()
        assert await idle(engine)

        async def consume(stream: AsyncIterator):
            async for _ in stream:
                pass

        task = asyncio.create_task(consume(engine.generate("b", ENDLESS)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await idle(engine)
        assert not engine._tags

    run(body)


def test_abort_ends_with_what_there_is():
    async def body(engine: AsyncLLM):
        output = None
        async for output in engine.generate("a", ENDLESS, "this"):
            await engine.abort("this")
        assert output.finished and output.outputs[0].finish_reason in ("abort", "length")
        await engine.abort("never heard of")

    run(body)


def test_a_request_id_is_one_requests_at_a_time():
    async def body(engine: AsyncLLM):
        first = engine.generate("a", ENDLESS, "same")
        await first.__anext__()
        with pytest.raises(InvalidRequestError, match="'same' that has not finished"):
            await engine.generate("b", ENDLESS, "same").__anext__()
        await first.aclose()
        last = [o async for o in engine.generate("b", SamplingParams(max_tokens=1), "same")][-1]
        assert last.finished

    run(body)


def test_a_wrong_request_fails_alone():
    async def body(engine: AsyncLLM):
        with pytest.raises(ValueError, match="logprobs"):
            await engine.generate("a", SamplingParams(logprobs=1000)).__anext__()
        assert [o async for o in engine.generate("a", SamplingParams(max_tokens=1))][-1].finished

    run(body)


def test_shutdown_ends_who_waits():
    async def main():
        engine = AsyncLLM(max_model_len=512, max_num_seqs=2)
        stream = engine.generate("a", ENDLESS)
        await stream.__anext__()
        await asyncio.get_running_loop().run_in_executor(None, engine.shutdown)
        with pytest.raises(EngineError, match="closed"):
            while True:
                await stream.__anext__()
        with pytest.raises(EngineError, match="closed"):
            await engine.generate("b", ENDLESS).__anext__()

    asyncio.run(asyncio.wait_for(main(), 60))
