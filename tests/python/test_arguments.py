"""What is refused, and in which words."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import quire
from quire import LLM, BeamSearchParams, SamplingParams
from quire._engine import _NATIVE


@pytest.mark.parametrize("name, nearest", [("max_num_seq", "max_num_seqs"), ("kv_cache_dtyp", "kv_cache_dtype"),
                                           ("gpu_memory_utilisation", "gpu_memory_utilization")])
def test_an_unknown_argument_names_the_nearest(name, nearest):
    with pytest.raises(TypeError, match=f"LLM has no argument '{name}'; the nearest is '{nearest}'"):
        LLM(**{name: 1})


def test_every_setting_of_the_engine_is_an_argument():
    header = (Path(__file__).parents[2] / "include" / "quire" / "engine_config.h").read_text()
    fields = set(re.findall(r"^  [\w:<>(), ]+ (\w+)(?: = [^;]*)?;", header, re.M)) - {"on_layer", "stopped"}
    assert len(fields) > 30 and fields == _NATIVE | {"model"}


def test_an_argument_of_vllms_that_is_not_supported_says_so():
    with pytest.raises(TypeError, match="'max_lora_rank' is an argument of vLLM's that Quire does not support"):
        LLM(max_lora_rank=8)
    with pytest.raises(TypeError, match="enable_lora=True is not supported"):
        LLM(enable_lora=True)
    with pytest.raises(TypeError, match="lora_request=.* not supported"):
        LLM.generate(object(), "a", lora_request=object())  # type: ignore[arg-type]


def test_what_changes_nothing_may_be_given():
    with LLM(max_model_len=128, max_num_seqs=1, trust_remote_code=True, enable_lora=False, load_format="auto",
             disable_log_stats=True, pipeline_parallel_size=1, dtype="float") as llm:
        assert llm.info["dtype"] == "float32" and llm.max_model_len == 128


@pytest.mark.parametrize("name, nearest", [("temprature", "temperature"), ("max_token", "max_tokens"),
                                           ("topp", "top_p")])
def test_an_unknown_sampling_parameter_names_the_nearest(name, nearest):
    with pytest.raises(TypeError, match=f"SamplingParams has no argument '{name}'; the nearest is '{nearest}'"):
        SamplingParams(**{name: 1})


def test_a_sampling_parameter_of_vllms_that_is_not_supported_says_so():
    with pytest.raises(TypeError, match="logits_processors=.* not supported"):
        SamplingParams(logits_processors=[print])
    assert SamplingParams(logits_processors=None) == SamplingParams()


@pytest.mark.parametrize("wrong", [dict(temperature=-1), dict(top_p=0), dict(top_p=1.5), dict(top_k=-2), dict(n=0),
                                   dict(n=2.5), dict(min_p=float("nan")), dict(max_tokens=-1), dict(max_tokens=True),
                                   dict(seed="x"), dict(presence_penalty=3), dict(min_tokens=20), dict(n=2, temperature=0)])
def test_a_value_out_of_range_is_a_value_error_that_names_it(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_a_text_for_a_number_stands_in_quotes_once():
    with pytest.raises(ValueError, match='^kv_cache_memory is "4GiB"; it must be a whole number$'):
        LLM(kv_cache_memory="4GiB")


def test_beams_have_their_own_ranges():
    with pytest.raises(ValueError, match="beam_width is 0"):
        BeamSearchParams(beam_width=0, max_tokens=3)
    with pytest.raises(TypeError, match="the nearest is 'beam_width'"):
        BeamSearchParams(beam_widt=1, max_tokens=3)


def test_a_model_that_is_not_there_is_a_value_error():
    with pytest.raises(ValueError, match="/no/such/model: no such directory"):
        LLM("/no/such/model")
    with pytest.raises(ValueError, match="dtype"):
        LLM(dtype="float8")
    with pytest.raises(ValueError, match="max_num_seqs"):
        LLM(max_num_seqs="many")


def test_a_full_queue_is_an_error_of_its_own():
    endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    with LLM(max_model_len=512, max_num_seqs=1, max_num_queued_reqs=2) as llm:
        thread = threading.Thread(target=llm.generate, args=(["a"] * 40, endless, False))
        thread.start()
        while llm.stats()["decode_tokens"] == 0:
            time.sleep(0.001)
        with pytest.raises(quire.QueueFullError):
            llm.generate(["b"] * 3, SamplingParams(max_tokens=1), use_tqdm=False)
        llm.close()
        thread.join(30)
    assert issubclass(quire.QueueFullError, RuntimeError)


def test_one_version_is_everywhere():
    program = subprocess.run([sys.executable, "-m", "quire", "--version"], capture_output=True, text=True, check=True)
    assert program.stdout.split() == ["quire", quire.__version__]
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{quire.__version__}"\n' in project


def test_parameters_and_outputs_are_plain_data(llm):
    params = SamplingParams(temperature=0, max_tokens=2, stop=["x"], logprobs=1)
    assert pickle.loads(pickle.dumps(params)) == params == params.clone()
    [output] = llm.generate("a", params, use_tqdm=False)
    assert pickle.loads(pickle.dumps(output)) == output


def test_exceptions_are_under_the_built_in_ones():
    assert issubclass(quire.InvalidRequestError, ValueError) and issubclass(quire.EngineError, RuntimeError)
    assert issubclass(quire.ForkError, quire.EngineError) and issubclass(quire.QueueFullError, quire.QuireError)
