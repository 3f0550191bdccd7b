"""How often the next target token is right: the guess of `exact`, and an oracle's.

    python benchmarks/first_token.py --draft-model MODEL --target NAME --text FILE [--every 8]

The oracle is what the draft model says of the next target token if nothing is cut short. It takes
back up to six draft tokens, looks at every way to go on that has a probability of 0.0001 or more,
and reads several tokens further, so that texts whose first target token is still open are decided
by what follows them. The probability of a target token is then the sum over all of them.
`exact` looks at far fewer covers. "covers" is its guess after one pass, the other rows grow a tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log

import click
from alignment import bootstrap
from reference_texts import ReferenceTexts, reference_texts
from rich.console import Console
from rich.progress import track

from tokalign.runtime.context import Context
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.translation.cover_translator import CoverTranslator
from tokalign.runtime.translation.exact import ExactTranslation
from tokalign.runtime.translation.growth import Growth, Node, join
from tokalign.tables.boundary import Boundary
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_MAX_BACK = 6
_LEAST = 1e-4
_LISTED = 2048
_WIDTH, _CHILDREN, _PASSES = 16, 64, 3


class Oracle:
    """The draft model's probabilities of the next target token, of one text."""

    def __init__(self, given: ReferenceTexts, ids: Sequence[TargetId]) -> None:
        self._text = given.prompt(ids).draft_text(given.pair)
        self._boundary = Boundary(given.pair.target, given.alignment.merge_sites)
        self._translator = CoverTranslator(given.pair, self._boundary)
        self._tokens = given.pair.draft.vocabulary.tokens
        self._extending = given.alignment.healing.extending

    def guess(self, committed: Sequence[TargetId], session: DraftModelSession) -> TargetId | None:
        """The likeliest next target token; None if none is found."""
        self._text.follow(committed)
        self._boundary.follow(committed)
        ids = self._text.ids
        roots, possible = self._roots(ids, session)
        growth = Growth(
            session,
            ids,
            roots,
            _PASSES,
            extend=self._translator.extend,
            least=possible * _LEAST,
            width=_WIDTH,
            children=_CHILDREN,
        )
        tree = join(growth.finish(), possible)
        return tree.ids[0] if tree else None

    def _roots(
        self, ids: Sequence[DraftId], session: DraftModelSession
    ) -> tuple[list[Node], float]:
        """All covers that may follow, the likeliest first, and the probability of all of them."""
        pending = [b""]
        for token in list(reversed(ids))[: min(_MAX_BACK, len(ids) - 1)]:
            if not self._tokens[token]:
                break
            pending.append(self._tokens[token] + pending[-1])
        self._translator.pending = pending
        rows = session.start_shortlists(ids, len(pending) - 1)
        lists = rows.among([self._extending(data) for data in pending[1:]], _LISTED).read()
        kept = sum(at.kept for at in lists)
        possible, nodes = exp(kept), []
        for back, at in enumerate(lists):
            kept -= at.kept
            for token, logprob in zip(at.ids, at.logprobs, strict=True):
                probability = exp(kept + logprob)
                possible += probability if back else 0.0
                if probability > 0.0:
                    nodes.append((kept + logprob, back, token))
        limit, roots = log(possible * _LEAST), []
        for logprob, back, token in sorted(nodes, reverse=True):
            if logprob < limit:
                break
            data, found = self._translator.translate(back, token)
            if found is None and self._boundary.absorbs(data):
                possible -= exp(logprob)
            elif found != ():
                roots.append(Node(logprob, -1, back, token, data, found, goes_on=bool(data)))
        return roots, possible


@click.command()
@reference_texts(steps=2, limit=None)
@click.option("--every", default=8, show_default=True, help="Positions from one to the next.")
def main(given: ReferenceTexts, *, every: int) -> None:
    """Print the share of positions where each guess is right."""
    session = DraftModelSession(given.model.model)
    right: dict[str, list[tuple[int, int]]] = {}
    for ids in track(given.texts, console=Console(stderr=True), transient=True):
        counts, positions = Counter[str](), range(given.prompt_tokens, len(ids) - 1, every)
        text = given.prompt(ids).draft_text(given.pair)
        exact, oracle = ExactTranslation(given.pair, text, given.alignment), Oracle(given, ids)
        for position in positions:
            committed, following = ids[:position], ids[position]
            for name, steps in (("covers", 1), ("exact", given.steps)):
                pending = exact.begin(Context(committed), session, steps, alternatives=4)
                counts[name] += pending.finish().tree.ids[:1] == (following,)
            counts["oracle"] += oracle.guess(committed, session) == following
        for name in ("covers", "exact", "oracle"):
            right.setdefault(name, []).append((counts[name], len(positions)))
    print(f"{given}, {sum(n for _, n in right['oracle'])} positions\n")
    print("| guess | right | 95 % |\n|---|---|---|")
    for name, each in right.items():
        low, high = bootstrap(each)
        share = sum(a for a, _ in each) / sum(n for _, n in each)
        print(f"| {name} | {share:.3f} | {low:.3f}–{high:.3f} |")


if __name__ == "__main__":
    main()
