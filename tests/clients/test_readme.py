"""What README.md shows of the server works as it stands there, on another port."""

import json
import re
import subprocess
import sys

import pytest

from scripted_model import ROOT


@pytest.fixture(scope="module")
def blocks():
    """Language -> the first code block of it in the section on serving."""
    text = (ROOT / "README.md").read_text()
    section = re.search(r"^## As a server\n(.*?)^## ", text, re.M | re.S)[1]
    blocks = {}
    for language, code in re.findall(r"^```(\w*)\n(.*?)^```$", section, re.M | re.S):
        blocks.setdefault(language or "sh", code)
    return blocks


@pytest.fixture(scope="module")
def run(server):
    def run(command, text):
        assert "localhost:8000" in text
        text = text.replace("localhost:8000", f"localhost:{server.port}")
        return subprocess.run([*command, text], check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout

    return run


def test_it_is_ten_lines_or_a_few_more(blocks):
    assert sum(code.strip().count("\n") + 1 for code in blocks.values()) <= 11


def test_the_command_exists(blocks, binary):
    [flags] = re.findall(r"quire serve ([^#&]*)", blocks["sh"])
    assert subprocess.run([binary, "serve", *flags.split(), "--help"], stdout=subprocess.DEVNULL).returncode == 0


def test_the_curl_command_answers(blocks, run):
    [command] = re.findall(r"^curl .*", blocks["sh"].replace("\\\n", " "), re.M)
    answer = json.loads(run(["bash", "-c"], command))
    assert "Quire" in answer["choices"][0]["message"]["content"]


def test_the_python_client_answers(blocks, run):
    assert "cache" in run([sys.executable, "-c"], blocks["python"])
