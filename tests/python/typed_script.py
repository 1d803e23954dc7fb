"""What type checkers say of a script that uses the package: nothing. tools/test_python.sh asks them."""

from __future__ import annotations

import asyncio
from typing import Optional

from quire import (LLM, AsyncLLM, BeamSearchParams, CompletionOutput, Logprob, RequestOutput, SamplingParams,
                   TokensPrompt)


def batch(llm: LLM) -> list[str]:
    params = SamplingParams(temperature=0.8, top_p=0.95, stop=["\n"], logprobs=1)
    outputs: list[RequestOutput] = llm.generate(["a", "b"], params, use_tqdm=False)
    outputs += llm.generate([TokensPrompt(prompt_token_ids=[1, 2])], [params])
    outputs += llm.generate([[1, 2], [3]])
    first: CompletionOutput = outputs[0].outputs[0]
    found: Optional[list[dict[int, Logprob]]] = first.logprobs
    llm.chat([{"role": "user", "content": "hello"}], params, tools=None)
    llm.beam_search([{"prompt": "a"}], BeamSearchParams(beam_width=2, max_tokens=4))
    ids: list[int] = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": "a"}])
    text: str = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    vector: list[float] = llm.embed("a")[0].outputs.embedding
    return [first.text, str(found), str(ids), text, str(vector)]


async def stream(prompt: str) -> str:
    text = ""
    async with AsyncLLM(max_model_len=128) as llm:
        async for output in llm.generate(prompt, SamplingParams(max_tokens=4)):
            text = output.outputs[0].text
    return text


if __name__ == "__main__":
    with LLM(max_model_len=128) as made:
        print(batch(made), asyncio.run(stream("a")))
