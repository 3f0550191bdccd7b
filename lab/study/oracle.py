"""The draft model's best guess at the next target token, with nothing cut short.

It takes back up to six draft tokens, looks at every way to go on that has a probability of 0.0001
or more, and reads several tokens further, so that texts whose first target token is still open are
decided by what follows them. The probability of a target token is then the sum over all of them.
What the oracle gets wrong, no translation can get right: the models disagree. It is far too slow to
decode with, some 50 passes' worth of rows for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from tokalign.runtime.chat import Prompt
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import Boundary
from tokalign.runtime.translation.covers import CoverTranslator
from tokalign.runtime.translation.growth import ModelTree, Node, join
from tokalign.tables.alignment import Alignment
from tokalign.tokenizer.vocabulary import DraftId, TargetId

_MAX_BACK = 6
_LEAST = 1e-4
_LISTED = 2048
_WIDTH, _CHILDREN, _PASSES = 16, 64, 3


class Oracle:
    """What the draft model makes of the next target token, for one text.

    Calls of `guess` are for contexts that go on with one another.
    """

    def __init__(self, pair: Pair, alignment: Alignment, prompt: Prompt) -> None:
        self._text = prompt.draft_text(pair)
        self._boundary = Boundary(pair.target, alignment.merge_sites)
        self._translator = CoverTranslator(pair, self._boundary)
        self._tokens = pair.draft.vocabulary.tokens
        self._extending = alignment.healing.extending

    def guess(self, committed: Sequence[TargetId], session: DraftModelSession) -> TargetId | None:
        """The most probable next target token; None if none is found."""
        self._text.follow(committed)
        self._boundary.follow(committed)
        ids = self._text.ids
        roots, possible = self._roots(ids, session)
        growth = ModelTree(
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
        """All covers that may follow, the most probable first, and the probability of all of
        them."""
        pending = [b""]
        for token in list(reversed(ids))[: min(_MAX_BACK, len(ids) - 1)]:
            if not self._tokens[token]:
                break
            pending.append(self._tokens[token] + pending[-1])
        rows = session.start_shortlists(ids, len(pending) - 1)
        lists = rows.among([self._extending(data) for data in pending[1:]], _LISTED)()
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
            data, found = self._translator.translate(len(pending[back]), token)
            if found is None and self._boundary.absorbs(data):
                possible -= exp(logprob)
            elif found != ():
                roots.append(Node(logprob, -1, back, token, data, found, goes_on=bool(data)))
        return roots, possible
