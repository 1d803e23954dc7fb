"""A model for batches: vLLM's LLM class."""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any, Mapping, Optional, Sequence, Union

from . import _native, _scoring
from ._arguments import refuse_unsupported
from ._engine import EngineCore, read_embedding, spread
from ._progress import UseTqdm, make_progress
from .exceptions import InvalidRequestError
from .inputs import Prompt, PromptType, TextPrompt, TokensPrompt, read_prompts
from .outputs import (BeamSearchOutput, BeamSearchSequence, EmbeddingRequestOutput, RequestOutput,
                      ScoringRequestOutput)
from .sampling_params import BeamSearchParams, SamplingParams
from .tokenizer import Tokenizer

Params = Union[SamplingParams, Sequence[SamplingParams], None]
Message = Mapping[str, Any]
Prompts = Union[PromptType, Sequence[PromptType]]
_POLL = 100  # milliseconds until a KeyboardInterrupt is noticed


class LLM:
    """A loaded model. Usable from several threads at once; each call's prompts run in one batch with all others.

    model: a checkpoint directory, a .gguf file, or a hub id such as "Qwen/Qwen3-0.6B", which is downloaded once;
    "": the bundled model, which has a few million parameters. All other arguments have vLLM's names, and those of
    Quire's alone are in docs/python.md. TypeError for one that is not known, InvalidRequestError for a wrong value.
    """

    def __init__(self, model: str = "", *, dtype: Any = "auto", tensor_parallel_size: int = 1,
                 gpu_memory_utilization: float = 0.9, max_model_len: Optional[int] = None,
                 quantization: Optional[str] = None, kv_cache_dtype: str = "auto",
                 enable_prefix_caching: Optional[bool] = None, seed: Optional[int] = None, **kwargs: Any) -> None:
        arguments: dict[str, Any] = dict(
            model=model, dtype=dtype, tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization, max_model_len=max_model_len, quantization=quantization,
            kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=enable_prefix_caching, seed=seed, **kwargs)
        self._core = EngineCore("LLM", arguments)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    # Requests.

    def generate(self, prompts: Prompts, sampling_params: Params = None, use_tqdm: UseTqdm = True,
                 lora_request: None = None, priority: Optional[Sequence[int]] = None, *,
                 cache_salt: str = "", timeout: Optional[float] = None) -> list[RequestOutput]:
        """Continues every prompt; the outputs are in the order of the prompts.

        sampling_params: one, or one each; None: the model author's. priority: one each, lower first, with
        scheduling_policy="priority". cache_salt: only prompts of equal salt share cached prefixes. timeout: seconds
        until what is unfinished ends with finish_reason "timeout". A prompt for which there is no room in the KV
        cache has outputs with finish_reason "error"; the others are not affected.
        """
        refuse_unsupported("LLM.generate", {"lora_request": lora_request}, {})
        options = {"cache_salt": cache_salt, "timeout": timeout}
        return self._generate(read_prompts(prompts), sampling_params, use_tqdm, priority, options)

    def chat(self, messages: Union[Sequence[Message], Sequence[Sequence[Message]]], sampling_params: Params = None,
             use_tqdm: UseTqdm = True, lora_request: None = None, chat_template: Optional[str] = None,
             chat_template_content_format: str = "auto", add_generation_prompt: bool = True,
             continue_final_message: bool = False, tools: Optional[Sequence[dict[str, Any]]] = None,
             chat_template_kwargs: Optional[Mapping[str, Any]] = None, mm_processor_kwargs: None = None,
             ) -> list[RequestOutput]:
        """Answers a conversation, or each of several. What stands in a message never becomes a special token.

        chat_template: a Jinja file, or a template's text, instead of the model's. tools: what the template tells
        the model of functions; calls come as the model spells them, in the text.
        """
        refuse_unsupported("LLM.chat", {"lora_request": lora_request, "mm_processor_kwargs": mm_processor_kwargs}, {})
        if chat_template_content_format not in ("auto", "string", "openai"):
            raise InvalidRequestError("chat_template_content_format must be auto, string or openai")
        if not messages:
            raise InvalidRequestError("there are no messages")
        conversations: Sequence[Any] = [messages] if isinstance(messages[0], Mapping) else messages
        prompts = [
            Prompt(None, self._core.tokenizer.apply_chat_template(
                each, tools, chat_template=chat_template, add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message, **dict(chat_template_kwargs or {})), "")
            for each in conversations]
        return self._generate(prompts, sampling_params, use_tqdm, None, {})

    def beam_search(self, prompts: Sequence[Union[str, TextPrompt, TokensPrompt]], params: BeamSearchParams,
                    lora_request: None = None, use_tqdm: UseTqdm = False,
                    concurrency_limit: Optional[int] = None) -> list[BeamSearchOutput]:
        """The beam_width likeliest texts of each prompt, the best first (docs/sampling.md says by which rules)."""
        refuse_unsupported("LLM.beam_search", {"lora_request": lora_request}, {})
        del concurrency_limit  # the scheduler has its own
        read = read_prompts(prompts)
        ids = [self._core.prompt_ids(prompt, i + 1, 1, None) for i, prompt in enumerate(read)]
        request = self._core.pack(params, {}, False)
        events = self._run([request] * len(read), ids, use_tqdm, "Searching")
        return [self._read_search(event) for event in events]

    def embed(self, prompts: Prompts, *, truncate_prompt_tokens: Optional[int] = None, use_tqdm: UseTqdm = True,
              pooling_params: Any = None, lora_request: None = None) -> list[EmbeddingRequestOutput]:
        """The hidden state after the final norm, [hidden_size], of the last token, or the mean over all, as
        pooler_config says; of length 1 unless that has normalize=False."""
        refuse_unsupported("LLM.embed", {"lora_request": lora_request}, {})
        options = dict(self._core.pooling)
        for name in ("dimensions", "normalize"):
            if getattr(pooling_params, name, None) is not None:
                options["normalise" if name == "normalize" else name] = getattr(pooling_params, name)
        params = SamplingParams(max_tokens=1, truncate_prompt_tokens=truncate_prompt_tokens)
        return self._pool(read_prompts(prompts), params, options, use_tqdm, "Embedding")

    def score(self, data_1: Union[str, Sequence[str]], data_2: Union[str, Sequence[str]], *,
              truncate_prompt_tokens: Optional[int] = None, use_tqdm: UseTqdm = True, pooling_params: Any = None,
              lora_request: None = None, instruction: Optional[str] = None) -> list[ScoringRequestOutput]:
        """What the server's /score says of pairs: of a reranker how relevant data_2 is to data_1, from 0 to 1, or
        with use_activation=False the difference of its logits; of any other model the cosine of their embeddings.

        data_1: one text, or one each of data_2. truncate_prompt_tokens: so many first tokens of each text, or, of a
        reranker's prompt, which is cut in data_2 alone, as many in all; -1: max_model_len. instruction: what
        relevance is, for a reranker.
        """
        refuse_unsupported("LLM.score", {"lora_request": lora_request}, {})
        left = [data_1] if isinstance(data_1, str) else list(data_1)
        right = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(left) != 1 and len(left) != len(right):
            raise InvalidRequestError(f"data_1 has {len(left)} texts and data_2 {len(right)}; data_1 has one, or as "
                                      "many")
        most = _scoring.read_most(truncate_prompt_tokens, self.max_model_len)
        activation = getattr(pooling_params, "use_activation", None) is not False
        classifier = self._core.info["classifier"] or {}
        if classifier.get("judges_pairs"):
            pairs = [(left[0 if len(left) == 1 else i], text) for i, text in enumerate(right)]
            prompts = [_scoring.pair_prompt(self._core, pair, instruction, most) for pair in pairs]
            params = SamplingParams(max_tokens=1, allowed_token_ids=classifier["tokens"])
            judged = self._pool(prompts, params, {"pooling": "logits"}, use_tqdm, "Scoring")
            return [ScoringRequestOutput(one.request_id, _scoring.of_logits(one, activation), one.prompt_token_ids)
                    for one in judged]
        _scoring.refuse_of_cosines(self._core, instruction, activation)
        prompts = [Prompt(None, self._core.tokenizer.encode(text)[:most], "") for text in (*left, *right)]
        found = self._pool(prompts, SamplingParams(max_tokens=1), {**self._core.pooling, "normalise": True}, use_tqdm,
                           "Scoring")
        scores = []
        for i, of in enumerate(found[len(left):]):
            one = found[0 if len(left) == 1 else i]
            scores.append(ScoringRequestOutput(of.request_id, _scoring.of_cosine(one, of),
                                               [*one.prompt_token_ids, *of.prompt_token_ids]))
        return scores

    # What it is.

    def get_tokenizer(self) -> Tokenizer:
        return self._core.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model author's, from generation_config.json, over the defaults of SamplingParams."""
        return self._core.default_params()

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its output at most."""
        return self._core.max_model_len

    @property
    def info(self) -> dict[str, Any]:
        """What was started: device, dtype, sizes, and the memory it takes, in bytes."""
        return dict(self._core.info)

    def stats(self) -> dict[str, float]:
        """Tokens that were computed since the start, and the seconds that took."""
        return _native.stats(self._core.handle)

    def close(self) -> None:
        """Ends what is unfinished and gives the memory back; so does forgetting the object."""
        self._core.handle.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    # How.

    def _next_id(self) -> str:
        with self._lock:
            return str(next(self._numbers))

    def _generate(self, prompts: list[Prompt], sampling_params: Params, use_tqdm: UseTqdm,
                  priority: Optional[Sequence[int]], options: dict[str, Any]) -> list[RequestOutput]:
        given = self._core.default_params() if sampling_params is None else sampling_params
        params = spread(given, len(prompts), "sampling parameters")
        if priority is not None:
            priority = spread(list(priority), len(prompts), "priorities")
        ids, requests = [], []
        packed: dict[tuple[int, int, str], bytes] = {}  # mostly all prompts have the same
        for i, (prompt, one) in enumerate(zip(prompts, params)):
            room = 0 if one.max_tokens == 0 else 1
            ids.append(self._core.prompt_ids(prompt, i + 1, room, one.truncate_prompt_tokens))
            key = (id(one), priority[i] if priority is not None else 0, prompt.salt)
            if key not in packed:
                own = {**options, "priority": key[1]}
                if prompt.salt:
                    own["cache_salt"] = prompt.salt
                packed[key] = self._core.pack(one, own, False)
            requests.append(packed[key])
        events = self._run(requests, ids, use_tqdm, "Processed prompts")
        return [self._core.read_output(self._next_id(), prompt.text, event, one)
                for prompt, event, one in zip(prompts, events, params)]

    def _pool(self, prompts: list[Prompt], params: SamplingParams, options: dict[str, Any], use_tqdm: UseTqdm,
              what: str) -> list[EmbeddingRequestOutput]:
        cut = params.truncate_prompt_tokens
        ids = [self._core.prompt_ids(prompt, i + 1, 0, cut) for i, prompt in enumerate(prompts)]
        events = self._run([self._core.pack(params, options, False)] * len(ids), ids, use_tqdm, what)
        return [read_embedding(self._next_id(), event) for event in events]

    def _run(self, requests: list[bytes], prompts: list[list[int]], use_tqdm: UseTqdm,
             what: str) -> list[dict[str, Any]]:
        """The end of each request. An exception, such as KeyboardInterrupt, ends them all."""
        channel = _native.Channel(self._core.handle)
        try:
            for i, (request, ids) in enumerate(zip(requests, prompts)):
                channel.add(i, request, ids)
            channel.flush()
            ends: dict[int, dict[str, Any]] = {}
            progress = make_progress(use_tqdm, len(requests), what)
            try:
                while len(ends) < len(requests):
                    events = channel.next(_POLL)
                    for event in events:
                        ends[event["tag"]] = event
                    if events:
                        progress.update(len(events))
            finally:
                progress.close()
            return [ends[i] for i in range(len(requests))]
        finally:
            channel.close()  # which aborts what is unfinished

    def _read_search(self, event: dict[str, Any]) -> BeamSearchOutput:
        prompt = event["prompt_token_ids"]
        before = self._core.tokenizer.decode(prompt, skip_special_tokens=True)
        sequences = []
        for one in event["outputs"]:
            if one.get("finish_reason") == "error":
                raise InvalidRequestError(one["error"])
            sequences.append(BeamSearchSequence([*prompt, *one["token_ids"]], before + one["text"],
                                                one.get("cumulative_logprob", 0.0), one.get("finish_reason"),
                                                one.get("stop_reason"), one.get("score")))
        return BeamSearchOutput(sequences)
