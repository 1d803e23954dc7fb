import pytest

THOUGHT = "\nTwo and two: 2 + 2 = 4.\n"
ANSWER = "\n\nThe answer is four."


@pytest.fixture(scope="module")
def ponder(scripted_client):
    def ponder(**fields):
        messages = [{"role": "user", "content": "Please ponder."}]
        return scripted_client.chat.completions.create(**{"model": "scripted", "messages": messages} | fields)

    return ponder


def test_reasoning_stands_beside_the_content(ponder):
    answer = ponder()
    message = answer.choices[0].message
    assert message.reasoning == message.reasoning_content == THOUGHT
    assert message.content == ANSWER
    assert 5 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens


def test_a_stream_keeps_reasoning_and_content_apart(ponder):
    reasoning = content = ""
    for chunk in ponder(stream=True, stream_options={"include_usage": True}):
        if not chunk.choices:
            usage = chunk.usage
            continue
        delta = chunk.choices[0].delta
        thought = getattr(delta, "reasoning", None) or ""
        assert thought == (getattr(delta, "reasoning_content", None) or "")
        assert not (thought and content), "a thought after the answer had begun"
        reasoning += thought
        content += delta.content or ""
    assert (reasoning, content) == (THOUGHT, ANSWER)
    assert usage.completion_tokens_details.reasoning_tokens == ponder().usage.completion_tokens_details.reasoning_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_can_be_left_out(ponder, stream):
    answer = ponder(stream=stream, extra_body={"include_reasoning": False})
    if stream:
        deltas = [chunk.choices[0].delta for chunk in answer]
        assert "".join(delta.content or "" for delta in deltas) == ANSWER
        assert not any(getattr(delta, "reasoning", None) for delta in deltas)
    else:
        assert answer.choices[0].message.content == ANSWER
        assert answer.choices[0].message.reasoning is None
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_a_thought_without_an_end_is_all_reasoning(ponder):
    choice = ponder(max_tokens=8).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content is None and THOUGHT.startswith(choice.message.reasoning)
