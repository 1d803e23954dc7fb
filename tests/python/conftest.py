"""What the tests share. They run against an installed package: tools/test_python.sh."""

from __future__ import annotations

from typing import Iterator

import pytest

from quire import LLM, SamplingParams


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(max_model_len=512, max_num_seqs=16) as made:
        yield made


@pytest.fixture
def greedy() -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=12)
