"""What `LLM` and `AsyncLLM` share: arguments, the engine, and how a prompt becomes a request."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Mapping, Optional, Sequence, Union

from . import _native
from ._arguments import refuse_unknown, refuse_unsupported
from .exceptions import InvalidRequestError
from .inputs import Prompt
from .outputs import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, RequestOutput, read_completion,
                      read_metrics, read_position)
from .sampling_params import BeamSearchParams, SamplingParams
from .tokenizer import Tokenizer

# Those of EngineConfig (include/quire/engine_config.h), under its names.
_NATIVE = frozenset(
    "cpu_isa cpu_threads tensor_parallel_size watchdog disable_custom_all_reduce dtype quantization quantize_head "
    "weight_only device max_num_seqs max_num_batched_tokens long_prefill_token_threshold max_model_len block_size "
    "kv_cache_dtype kv_cache_dtype_skip_layers chat_template generation_config override_generation_config "
    "kv_cache_memory state_cache_memory gpu_memory_utilization swap_space preemption_mode enforce_eager "
    "deterministic enable_prefix_caching disable_jump_forward max_logprobs scheduling_policy max_num_queued_reqs "
    "max_num_queued_tokens record record_tokens check_invariants seed".split())
_OURS = frozenset({"model", "revision", "offline", "kv_cache_memory_bytes", "pooler_config", "hf_overrides"})
# vLLM's, of which no value changes what is computed here.
_WITHOUT_EFFECT = frozenset(
    "trust_remote_code disable_log_stats disable_log_requests enable_log_requests max_seq_len_to_capture "
    "compilation_config distributed_executor_backend async_scheduling served_model_name runner task convert "
    "disable_cascade_attn use_tqdm_on_load download_dir max_parallel_loading_workers tokenizer_mode hf_token "
    "enable_chunked_prefill allowed_local_media_path limit_mm_per_prompt max_num_partial_prefills "
    "structured_outputs_config attention_backend attention_config".split())
# vLLM's, which may have the value that changes nothing.
_NEUTRAL: dict[str, Any] = {
    "tokenizer": None, "tokenizer_revision": None, "code_revision": None, "skip_tokenizer_init": False,
    "load_format": "auto", "pipeline_parallel_size": 1, "data_parallel_size": 1, "enable_expert_parallel": False,
    "cpu_offload_gb": 0, "mm_processor_kwargs": None, "enable_lora": False,
    "speculative_config": None, "enable_sleep_mode": False, "kv_transfer_config": None, "logits_processors": None,
    "calculate_kv_scales": False, "enable_prompt_embeds": False, "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1, "logprobs_mode": "raw_logprobs"}
_UNSUPPORTED = frozenset(
    "max_loras max_lora_rank max_cpu_loras lora_modules model_impl model_loader_extra_config worker_cls "
    "worker_extension_cls additional_config hf_config_path kv_events_config ec_transfer_config "
    "interleave_mm_strings skip_mm_profiling disable_sliding_window num_gpu_blocks_override "
    "disable_hybrid_kv_cache_manager mamba_cache_dtype seed_all".split())
_DTYPES = {"half": "float16", "float": "float32"}


def _read_value(name: str, value: Any) -> Any:
    """What the library takes for an argument of this name."""
    if name == "dtype":  # a torch.dtype prints itself as torch.float16
        text = str(value).replace("torch.", "")
        return _DTYPES.get(text, text)
    if name in ("chat_template", "record", "generation_config"):
        return os.fspath(value)
    if name == "override_generation_config" and isinstance(value, Mapping):
        return json.dumps(value)
    if name == "kv_cache_dtype_skip_layers" and not isinstance(value, str):
        return ",".join(str(layer) for layer in value)
    return value


def read_arguments(where: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an engine: TypeError for a name that is not known, or of vLLM's and not supported."""
    refuse_unknown(where, arguments, [*_NATIVE, *_OURS, *_WITHOUT_EFFECT, *_NEUTRAL], _UNSUPPORTED)
    neutral = dict(_NEUTRAL)
    neutral["tokenizer"] = arguments.get("model")
    refuse_unsupported(where, {k: v for k, v in arguments.items() if k in _NEUTRAL}, neutral)
    config = {name: _read_value(name, value) for name, value in arguments.items()
              if name in _NATIVE and value is not None}
    if arguments.get("kv_cache_memory_bytes") is not None:
        config["kv_cache_memory"] = arguments["kv_cache_memory_bytes"]
    return config


def read_pooling(config: Any) -> dict[str, Any]:
    """vLLM's pooler_config, an object or a dict, as options of a request."""
    def get(name: str) -> Any:
        return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)

    kind = str(get("pooling_type") or "LAST").lower()
    if kind not in ("last", "mean"):
        raise InvalidRequestError(f"pooling_type is {kind!r}; it must be LAST or MEAN")
    normalise = get("normalize")
    return {"pooling": kind, "normalise": True if normalise is None else bool(normalise),
            "dimensions": get("dimensions") or 0}


def read_overrides(overrides: Any) -> str:
    """vLLM's hf_overrides, a dict, as JSON; "": none."""
    if not overrides:
        return ""
    if not isinstance(overrides, Mapping):
        raise InvalidRequestError(f"hf_overrides is {overrides!r}; it must be a dict")
    try:
        return json.dumps(dict(overrides))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"hf_overrides is no JSON: {error}") from None


class _DownloadLine:
    """What comes of a download, on stderr: a line every tenth."""

    def __init__(self, model: str) -> None:
        self._model, self._next, self._total = model, 0.0, 0

    def __call__(self, done: int, total: int) -> None:
        if total != self._total:
            self._next, self._total = 0.0, total
        if total > 0 and done >= self._next:
            self._next = done + total / 10
            print(f"quire: downloading {self._model}: {done / 1e6:.1f} of {total / 1e6:.1f} MB", file=sys.stderr)


class EngineCore:
    """A started engine and its tokenizer."""

    def __init__(self, where: str, arguments: Mapping[str, Any]) -> None:
        config = read_arguments(where, arguments)
        model = os.fspath(arguments.get("model") or "")
        self.pooling = read_pooling(arguments.get("pooler_config") or {})
        source = {"model": model, "revision": arguments.get("revision") or "main",
                  "offline": bool(arguments.get("offline")), "with_weights": True}
        config["model"] = _native.find_model(source, _DownloadLine(model)) if model else ""
        config["hf_overrides"] = read_overrides(arguments.get("hf_overrides"))
        self.handle = _native.new_engine(config)
        self.info = _native.info(self.handle)
        self.tokenizer = Tokenizer(self.handle, self.info)
        self.max_model_len: int = self.info["max_model_len"]

    def default_params(self) -> SamplingParams:
        values: dict[str, Any] = {name: value if isinstance(value, int) else round(value, 6)  # of float32
                                  for name, value in self.info["sampling"].items()}
        return SamplingParams(**values)

    def prompt_ids(self, prompt: Prompt, number: int, room: int, cut: Optional[int]) -> list[int]:
        """The tokens of a prompt, beside which room for so many must be. cut: as truncate_prompt_tokens."""
        ids = prompt.ids
        if ids is None:
            assert prompt.text is not None
            ids = self.tokenizer.encode(prompt.text)
        if not ids:
            raise InvalidRequestError(f"prompt {number} is empty")
        most = self.max_model_len - room
        if cut is None and len(ids) > most:
            raise InvalidRequestError(f"prompt {number} has {len(ids)} tokens; with max_model_len "
                                      f"{self.max_model_len} it may have {most}")
        return ids

    def pack(self, params: Union[SamplingParams, BeamSearchParams], options: dict[str, Any], stream: bool) -> bytes:
        native = (params.to_native(self.max_model_len) if isinstance(params, SamplingParams)
                  else params.to_native())
        return _native.pack_request(native, options, stream)

    def read_output(self, request_id: str, prompt: Optional[str], event: dict[str, Any],
                    params: SamplingParams) -> RequestOutput:
        """A finished request."""
        decode = self.tokenizer.token_text if self.info["has_tokenizer"] else str
        wants = params.logprobs is not None
        outputs = [read_completion(one, decode, wants) for one in event["outputs"]]
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = [None, *(read_position(at, decode) for at in event.get("prompt_logprobs", ()))]
        return RequestOutput(request_id, prompt, event["prompt_token_ids"], outputs, True, prompt_logprobs,
                             read_metrics(event), event["num_cached_tokens"])

    def read_piece(self, event: dict[str, Any], params: SamplingParams) -> CompletionOutput:
        """What is new of one output."""
        decode = self.tokenizer.token_text if self.info["has_tokenizer"] else str
        return read_completion(event["outputs"][0], decode, params.logprobs is not None)


def read_embedding(request_id: str, event: dict[str, Any]) -> EmbeddingRequestOutput:
    if "embedding" not in event:
        one = event["outputs"][0]
        raise InvalidRequestError(f"request {request_id} has no embedding: "
                                  f"{one.get('error') or one.get('finish_reason')}")
    return EmbeddingRequestOutput(request_id, EmbeddingOutput(event["embedding"]), event["prompt_token_ids"])


def spread(value: Any, count: int, what: str) -> Sequence[Any]:
    """One for all, or one each."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InvalidRequestError(f"{count} prompts with {len(value)} {what}; give one, or one each")
    return value
