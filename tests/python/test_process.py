"""The package among threads, signals, forks and at the interpreter's end."""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from quire import LLM, EngineError, SamplingParams

START = """
import os, signal, sys, threading, time
from quire import LLM, AsyncLLM, EngineError, ForkError, SamplingParams
llm = LLM(max_model_len=512, max_num_seqs=4)
endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
"""


def run_script(body: str, timeout: float = 60) -> subprocess.CompletedProcess:
    script = textwrap.dedent(START) + textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout, check=False)


def rss() -> int:
    """Bytes that this process has in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_threads_generate_at_once(llm, greedy):
    expected = [llm.generate(f"number {i}", greedy, use_tqdm=False)[0].outputs[0].token_ids for i in range(6)]
    found = [None] * 6

    def work(i):
        found[i] = llm.generate(f"number {i}", greedy, use_tqdm=False)[0].outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected


def test_other_threads_run_while_a_batch_does(llm):
    counted = []
    done = threading.Event()

    def count():
        while not done.is_set():
            counted.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    llm.generate(["a"] * 4, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True), use_tqdm=False)
    during = len(counted)
    done.set()
    thread.join()
    assert during > 5


def test_a_keyboard_interrupt_stops_a_batch_and_the_engine_goes_on():
    done = run_script("""
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            while True:
                llm.generate(["a"] * 64, endless, use_tqdm=False)
        except KeyboardInterrupt:
            print("stopped", time.monotonic() - begin < 5)
        [after] = llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
        print(len(after.outputs[0].token_ids))
        """)
    assert done.stdout.split() == ["stopped", "True", "2"], done.stderr


def write_model(folder: Path, tokenizer: Path, layers: int) -> None:
    """A Qwen3 of zeros, [1024] wide, with 13 million parameters a layer; its file takes no room on a disk."""
    shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8,
                  num_hidden_layers=layers, max_window_layers=layers)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], 1024], "model.norm.weight": [1024]}
    for layer in range(layers):
        for name, shape in {
                "input_layernorm": [1024], "post_attention_layernorm": [1024], "self_attn.q_norm": [64],
                "self_attn.k_norm": [64], "self_attn.q_proj": [1024, 1024], "self_attn.k_proj": [512, 1024],
                "self_attn.v_proj": [512, 1024], "self_attn.o_proj": [1024, 1024], "mlp.gate_proj": [3072, 1024],
                "mlp.up_proj": [3072, 1024], "mlp.down_proj": [1024, 3072]}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_keyboard_interrupt_ends_the_loading_of_a_model(llm, tmp_path, ranks):
    write_model(tmp_path / "model", Path(llm.info["model"]), 200)
    done = run_script(f"""
        def rss():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def interrupt():
            while rss() - before < 100 << 20:
                time.sleep(0.01)
            interrupted.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        before, interrupted = rss(), []
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            LLM({str(tmp_path / "model")!r}, quantization="int8", max_model_len=64, max_num_seqs=1,
                tensor_parallel_size={ranks})
        except KeyboardInterrupt:
            print("stopped", time.monotonic() - interrupted[0] < 2)
        print(rss() - before < 64 << 20)
        print(len(llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)))
        """)
    assert done.stdout.split() == ["stopped", "True", "True", "1"], done.stderr


def test_a_keyboard_interrupt_ends_the_wait_for_a_hub_that_is_silent(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:%d" % silent.getsockname()[1])
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        done = run_script("""
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            begin = time.monotonic()
            try:
                LLM("org/name")
            except KeyboardInterrupt:
                print("stopped", time.monotonic() - begin < 5)
            """)
    assert done.stdout.split() == ["stopped", "True"], done.stderr


def test_a_forked_child_is_told_and_may_have_an_engine_of_its_own():
    done = run_script("""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                llm.generate("a", use_tqdm=False)
            except ForkError as error:
                print("spawn" in str(error))
            try:
                llm.get_tokenizer().encode("a")
            except ForkError:
                print(True)
            own = LLM(max_model_len=128, max_num_seqs=1)
            print(len(own.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)))
            sys.exit(0)
        print("child", os.waitpid(child, 0)[1])
        print(len(llm.generate("a", SamplingParams(max_tokens=1), use_tqdm=False)))
        """)
    assert done.stdout.split() == ["True", "True", "1", "child", "0", "1"], done.stderr


@pytest.mark.parametrize("body", [
    "pass",
    "def work():\n"
    "    try:\n"
    "        llm.generate(['a'] * 64, endless, use_tqdm=False)\n"
    "    except EngineError:\n"
    "        pass\n"
    "threading.Thread(target=work, daemon=True).start(); time.sleep(0.1)",
    "sys.exit(0)",
    "import gc; keep = [llm]; keep.append(keep)",
    "engine = AsyncLLM(max_model_len=128, max_num_seqs=1)",
    "import asyncio\n"
    "async def main():\n"
    "    stream = AsyncLLM(max_model_len=512, max_num_seqs=1).generate('a', endless)\n"
    "    await stream.__anext__()\n"
    "asyncio.run(main())",
])
def test_the_interpreter_ends_cleanly(body):
    done = run_script(body)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_engine_says_so_and_its_tokenizer_too():
    llm = LLM(max_model_len=128, max_num_seqs=1)
    tokenizer = llm.get_tokenizer()
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("a", use_tqdm=False), lambda: tokenizer.encode("a"), llm.stats):
        with pytest.raises(EngineError, match="closed"):
            call()


def test_closing_ends_a_batch_of_another_thread():
    llm = LLM(max_model_len=512, max_num_seqs=2)
    found = []

    def work():
        try:
            outputs = llm.generate(["a"] * 64, SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)
            found.append({output.outputs[0].finish_reason for output in outputs})
        except EngineError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    llm.close()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(found[0], EngineError) or "abort" in found[0]


def test_a_forgotten_engine_gives_its_threads_back():
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    llm = LLM(max_model_len=128, max_num_seqs=1)
    assert threads() > before
    del llm
    gc.collect()
    assert threads() == before


def test_engines_and_requests_leave_no_memory_behind():
    """QUIRE_LEAK_ENGINES: how many engines are made and dropped, and a hundred times as many requests."""
    engines = int(os.environ.get("QUIRE_LEAK_ENGINES", "40"))

    def cycle():
        llm = LLM(max_model_len=64, max_num_seqs=4)
        llm.generate(["a b c"] * 4, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)

    for _ in range(engines // 4):
        cycle()
    gc.collect()
    before = rss()
    for _ in range(engines):
        cycle()
    gc.collect()
    assert rss() - before < max(8 << 20, engines * 50_000), "an engine leaves over 50 kB"
    llm = LLM(max_model_len=64, max_num_seqs=16)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=2)

    def requests(count):
        for _ in range(count):
            llm.generate(["a b c"] * 100, params, use_tqdm=False)

    requests(max(1, engines // 4))
    gc.collect()
    before = rss()
    requests(engines)
    gc.collect()
    assert rss() - before < max(4 << 20, engines * 100 * 100), "a request leaves over 100 bytes"
