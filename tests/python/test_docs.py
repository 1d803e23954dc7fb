"""What docs/python.md and examples/ show runs as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_examples_run(tmp_path):
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "the nearest is 'max_model_len'" in done.stdout


def test_the_example_of_a_batch_goes_on_where_it_ended(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": i, "prompt": f"number {i}"}) + "\n" for i in range(6)))
    target.write_text("".join(json.dumps({"id": i, "text": "as it was"}) + "\n" for i in range(2)))
    subprocess.run([sys.executable, str(ROOT / "examples/batch_inference.py"), str(source), str(target)], check=True,
                   capture_output=True)
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["id"] for line in lines] == list(range(6))
    assert [line["text"] == "as it was" for line in lines] == [True] * 2 + [False] * 4
    assert all(line["text"] for line in lines)
