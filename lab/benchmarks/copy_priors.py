"""How often copies are right: on edits, which a repository's own history holds, and on its texts.

    python -m lab.benchmarks.copy_priors --target MODEL [--repository FOLDER] [--commits 110]

An edit is one hunk of a commit with 14 lines around it: the old text is the prompt, the new one the
answer. A text is a passage of a file, of which the first 60 ids are the prompt. For every id of an
answer it is counted whether what `ContextCopy` copies was right: by kind and length of the match,
and by whether it lies in the prompt; and whether the passage that is followed through a difference
was right, by how many ids agree since.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import run

import click

from tokalign.names.registry import resolve_tokenizer
from tokalign.runtime.draft.context_copy import AGREED, LATEST, ONLY, ContextCopy
from tokalign.tokenizer.tokenizer import Tokenizer
from tokalign.tokenizer.vocabulary import TargetId

KINDS = {ONLY: "once", AGREED: "agreed", LATEST: "latest"}
_LONGEST, _FEWEST = 12, 15
_SUFFIXES = ".py", ".md"

Counts = dict[tuple[str, str, int], list[int]]


def edits(folder: Path, commits: int) -> Iterator[tuple[str, str]]:
    """Old and new text of one hunk of some files of random commits."""
    chosen = _git(folder, "log", "--format=%h", "--no-merges", "-n", "900").split()
    random.shuffle(chosen)
    for commit in chosen[:commits]:
        names = _git(folder, "diff", "--name-only", "--diff-filter=M", f"{commit}~1", commit)
        for name in [one for one in names.split() if one.endswith(_SUFFIXES)][:2]:
            text = _git(folder, "diff", "-U14", f"{commit}~1", commit, "--", name)
            hunk = random.choice(re.split(r"^@@.*\n", text, flags=re.M)[1:]).splitlines()
            yield tuple("\n".join(x[1:] for x in hunk if x[:1] in f" {s}") for s in "-+")  # type: ignore[misc]


def _git(folder: Path, *arguments: str) -> str:
    return run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    ).stdout


def passages(folder: Path, tokenizer: Tokenizer[TargetId], count: int) -> Iterator[list[TargetId]]:
    """Passages of 600 ids of random files."""
    paths = [path for suffix in _SUFFIXES for path in sorted(folder.rglob(f"*{suffix}"))]
    for path in random.sample(paths, min(count, len(paths))):
        yield tokenizer.encode(path.read_text("utf-8")[:2400])[:600]


def count_copies(prompt: Sequence[TargetId], answer: Sequence[TargetId], counts: Counts) -> None:
    """Add what was copied before each id of an answer, and what of it was right."""
    copy, text = ContextCopy(), list(prompt)
    for token in answer:
        place, passage = copy.follow(text)
        occurrence = copy.automaton.occurrence(place)
        if occurrence is not None and (copied := copy.copied(occurrence)) is not None:
            where = "prompt" if occurrence.latest <= len(prompt) else "answer"
            key = KINDS[copy.kind(occurrence)], where, min(occurrence.length, _LONGEST)
            counts[key][copied[0] == token] += 1
        if (resumed := copy.resumed(passage)) is not None:
            agrees = "alone" if occurrence is None or copied is None else "differs"
            agrees = "agrees" if agrees == "differs" and copied[0] == resumed[0] else agrees  # type: ignore[index]
            counts["resumed", agrees, passage.run][resumed[0] == token] += 1
        text.append(token)


@click.command()
@click.option("--target", required=True, help="Whose tokenizer encodes the texts.")
@click.option("--repository", default=Path(), type=click.Path(path_type=Path, exists=True))
@click.option("--commits", default=110, show_default=True)
def main(target: str, repository: Path, commits: int) -> None:
    """Print the shares that were right, of what was counted often enough."""
    random.seed(1)
    tokenizer: Tokenizer[TargetId] = resolve_tokenizer(target).tokenizer
    encode = tokenizer.encode
    of_edits, of_texts = (
        defaultdict[tuple[str, str, int], list[int]](lambda: [0, 0]) for _ in "12"
    )
    for old, new in edits(repository, commits):
        count_copies(encode(f"Change this:\n{old}\n"), encode(new)[:500], of_edits)
    for ids in passages(repository, tokenizer, commits // 2):
        count_copies(ids[:60], ids[60:], of_texts)
    for name, counts in (("edits", of_edits), ("texts", of_texts)):
        for (kind, where, length), (wrong, right) in sorted(counts.items()):
            if wrong + right >= _FEWEST:
                share = right / (wrong + right)
                click.echo(f"{name}: {kind}, {where}, {length}: {share:.2f} of {wrong + right}")


if __name__ == "__main__":
    main()
