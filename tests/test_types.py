"""The type checker keeps the ids of the two models apart: mypy refuses what would mix them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

PROJECT = Path(__file__).resolve().parent.parent

SNIPPETS = """
from tokalign.runtime.draft.neural import NeuralDrafter
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.rounds import Context, Proposal, Verdict
from tokalign.runtime.translation.base import Pair, Translation
from tokalign.runtime.translation.committed_text import Boundary, DraftText
from tokalign.runtime.loop import TargetVerifier
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.bpe.encoder import IncrementalEncoder
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import DraftId, TargetId

theirs: list[DraftId] = [DraftId(1)]
ours: list[TargetId] = [TargetId(1)]


def refused(
    pair: Pair,
    text: DraftText,
    context: Context,
    draft: DraftModelSession,
    target: TargetModelSession,
    boundary: Boundary,
    translation: Translation,
) -> None:
    Context(theirs)  # refused
    context.extend(theirs)  # refused
    context.extend(text.ids)  # refused
    context.extend(draft.draft(theirs, 1).ids)  # refused
    context.extend([3])  # refused
    Verdict(ids=tuple(theirs), path=(), rows=1)  # refused
    Proposal(tree=TokenTree.chain(theirs, "draft"))  # refused
    draft.branch(theirs, TokenTree.chain(ours, "draft"), None, 1)  # refused
    boundary.follow(theirs)  # refused
    text.follow(theirs)  # refused
    text.ids.append(TargetId(1))  # refused
    text.ids.append(1)  # refused
    DraftText(pair.target, pair.draft, draft_prompt=ours)  # refused
    DraftText(pair.draft, pair.target)  # refused
    Pair(pair.draft, pair.target)  # refused
    pair.split_end(ours)  # refused
    draft.logits(context.ids)  # refused
    draft.draft(context.ids, 2)  # refused
    draft.start_shortlists(context.ids, 1)  # refused
    target.logits(text.ids)  # refused
    target.tree(theirs, TokenTree())  # refused
    theirs.extend(target.read(None))  # refused
    ours.extend(draft.read(None))  # refused
    draft.settle(context.ids)  # refused
    target.logits(theirs)  # refused
    TargetVerifier(draft, Sampling())  # refused
    NeuralDrafter(target, translation)  # refused
    Sampling().choose(None, [0], ids=theirs)  # refused


def of_tokenizers(draft: Tokenizer[DraftId], target: Tokenizer[TargetId]) -> None:
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
"""Lines that mypy must refuse end in "# refused", and not for a name that there is not; it must
accept all others."""


@pytest.mark.slow
def test_mixing_the_ids_of_the_two_models_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "snippets.py"
    file.write_text(SNIPPETS)
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("MYPYPATH", str(PROJECT))
    report, errors, _ = api.run(["--config-file", "pyproject.toml", str(file)])
    assert not errors
    assert not re.search(r"\[(attr-defined|call-arg|import.*|name-defined)\]", report), report
    found = {int(line) for line in re.findall(r"snippets\.py:(\d+): error", report)}
    lines = SNIPPETS.splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert len(wanted) > 25
    unlike = found ^ wanted
    assert not unlike, "\n".join([lines[number - 1] for number in sorted(unlike)] + [report])
