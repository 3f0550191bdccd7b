"""The type checker tells the draft's ids from the target's at every door of a tokenizer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

PROGRAM = """
from tokalign.bpe.encoder import IncrementalEncoder
from tokalign.runtime.translation.committed_text import Boundary
from tokalign.names.registry import resolve_tokenizer
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

draft: Tokenizer[DraftId] = resolve_tokenizer("llama3.2").tokenizer
target: Tokenizer[TargetId] = resolve_tokenizer("bielik").tokenizer
d, t = DraftId(1), TargetId(1)
of_draft, of_target = draft.bpe.validity, target.bpe.validity

of_target.may_follow(t, t)
of_target.may_follow(d, t)  # refused
of_target.may_follow(t, 5)  # refused
of_target.reachable(d)  # refused
of_target.right_spine(d)  # refused
of_target.stays_apart(of_target.right_spine(t), of_draft.left_spine(d))  # refused
target.vocabulary.bytes_of(target.encode("a"))
target.vocabulary.bytes_of(draft.encode("a"))  # refused
target.vocabulary.bytes_of(draft.bpe.encode(b"a"))  # refused
target.vocabulary.bytes_of(draft.bpe.encode_piece(b"a"))  # refused
target.vocabulary.bytes_of(draft.bpe.order.ids)  # refused
target.vocabulary.bytes_of(IncrementalEncoder(draft.bpe).ids)  # refused
target.vocabulary.bytes_of(IncrementalEncoder(target.bpe).ids)
target.vocabulary.bytes_of(draft.vocabulary.roles.eos)  # refused
target.vocabulary.bytes_of([draft.vocabulary.id_of[b"a"]])  # refused
Boundary(target)
Boundary(draft)  # refused
"""


@pytest.mark.slow
def test_a_draft_id_never_reaches_a_parameter_for_target_ids(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(program)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    answer = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    refused = {int(line) for line in re.findall(r"program\.py:(\d+): error", answer)}
    lines = enumerate(PROGRAM.splitlines(), start=1)
    assert refused == {number for number, line in lines if line.endswith("# refused")}, answer
