"""`quire batch`: files in OpenAI's batch format."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time

from quire.batch import _Server

QUIRE = [sys.executable, "-m", "quire", "batch"]
FLAGS = ["--no-progress", "--max-model-len", "256", "--max-num-seqs", "8"]


def chat(custom_id: str, **body):
    body = {"model": "whatever", "messages": [{"role": "user", "content": "What is Quire?"}], "max_tokens": 8,
            "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def run(source, target, *flags):
    return subprocess.run([*QUIRE, str(source), str(target), *FLAGS, *flags], capture_output=True, text=True,
                          timeout=120, check=False)


def read(target):
    return {line["custom_id"]: line for line in map(json.loads, target.read_text().splitlines())}


def test_every_line_has_its_answer(tmp_path, llm, greedy):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [chat("a"), {"custom_id": "b", "method": "POST", "url": "/v1/completions",
                               "body": {"prompt": "What is Quire?", "max_tokens": 12, "temperature": 0}},
                   {"custom_id": "c", "method": "POST", "url": "/v1/embeddings", "body": {"input": "text"}}])
    done = run(source, target)
    assert (done.returncode, done.stderr) == (0, "3 answered, 0 with an error, 0 from an earlier run\n")
    found = read(target)
    assert {line["response"]["status_code"] for line in found.values()} == {200}
    assert {line["error"] for line in found.values()} == {None}
    [expected] = llm.generate("What is Quire?", greedy, use_tqdm=False)
    assert found["b"]["response"]["body"]["choices"][0]["text"] == expected.outputs[0].text
    assert "engine" in found["a"]["response"]["body"]["choices"][0]["message"]["content"]
    assert len(found["c"]["response"]["body"]["data"][0]["embedding"]) > 1


def test_a_wrong_line_has_an_error_and_the_others_answers(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, ["{no json", chat("good"), chat("hot", temperature=-1), chat("good"), chat("s", stream=True),
                   {**chat("get"), "method": "GET"}, "", {"custom_id": "n"}])
    done = run(source, target)
    assert done.returncode == 1 and "1 answered, 6 with an error" in done.stderr
    lines = list(map(json.loads, target.read_text().splitlines()))
    by_line = {line["line"]: line["error"]["message"] for line in lines if line["custom_id"] is None}
    assert "no JSON" in by_line[1] and "'good' stands in an earlier line" in by_line[4]
    found = read(target)
    assert found["good"]["response"]["status_code"] == 200
    assert found["hot"]["response"]["status_code"] == 400
    assert "temperature" in found["hot"]["response"]["body"]["error"]["message"]
    assert "stream" in found["s"]["error"]["message"] and "POST" in found["get"]["error"]["message"]


def test_a_batch_goes_on_where_it_was_ended(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [chat(f"r{i}", max_tokens=60, ignore_eos=True, seed=i) for i in range(120)])
    process = subprocess.Popen([*QUIRE, str(source), str(target), *FLAGS], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while (not target.exists() or target.read_text().count("\n") < 5) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = target.read_text().count("\n")
    assert 5 <= before < 120
    with target.open("a") as file:
        file.write('{"id": "batch_req_torn", "cus')  # what a write that was cut leaves
    done = run(source, target)
    assert done.returncode == 0 and f"{before} from an earlier run" in done.stderr
    ids = [json.loads(line)["custom_id"] for line in target.read_text().splitlines()]
    assert sorted(ids) == sorted(f"r{i}" for i in range(120))


def test_an_interrupt_says_how_to_go_on(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [chat(f"r{i}", max_tokens=100, ignore_eos=True) for i in range(400)])
    process = subprocess.Popen([*QUIRE, str(source), str(target), *FLAGS], stderr=subprocess.PIPE, text=True)
    while not target.exists() or not target.read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert "goes on where this one ended" in process.communicate(timeout=60)[1]
    assert process.returncode == 130


def test_the_server_of_a_batch_has_a_key_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", "another server's")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [chat("a")])
    done = run(source, target)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr  # nor is its access log shown
    for flag in ("--api-key", "--ssl-certfile"):
        for flags in ([flag, "k"], ["--" + flag[2:].replace("-", "_") + "=k"]):
            done = run(source, tmp_path / "new.jsonl", *flags)
            assert done.returncode == 2 and done.stderr.startswith("quire: " + flag) and done.stderr.count("\n") == 1


def test_a_batch_may_have_the_configuration_of_a_server_with_keys_and_tls(tmp_path):
    source, target, config = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "serve.yaml"
    write(source, [chat("a")])
    config.write_text("host: 0.0.0.0\nport: 8000\napi-key: k\nssl-certfile: no/such.pem\nssl-keyfile: no/such.pem\n")
    done = run(source, target, "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "1 answered, 0 with an error, 0 from an earlier run\n")


def test_why_a_server_stops_is_shown_where_it_was_not_asked_to(capsys):
    _Server._show(io.StringIO("quire: stopping; requests under way have 30 s (a second signal: none)\n"
                              "quire: stopping: the device is lost\n"))
    assert capsys.readouterr().err == "quire: stopping: the device is lost\n"


def test_what_is_no_output_is_not_written_to(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [chat("a")])
    target.write_text("my notes\n")
    done = run(source, target)
    assert done.returncode == 2 and "no output of a batch" in done.stderr and target.read_text() == "my notes\n"
    done = run(tmp_path / "absent.jsonl", tmp_path / "new.jsonl")
    assert done.returncode == 2 and "absent.jsonl" in done.stderr
    done = run(source, tmp_path / "new.jsonl", "--max-model-le", "5")
    assert done.returncode == 2 and "--max-model-len" in done.stderr
