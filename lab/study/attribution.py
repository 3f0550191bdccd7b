"""Why rounds ended, and with them why the target had to compute a pass that a perfect draft saves.

Every round ends with an id of the target's own, and its cause is one of `CAUSES`. Where a proposed
id was rejected, an oracle (`oracle.py`) says whether the draft model knew better: if its best guess
in the canonical context is the target's choice, the translation lost it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lab.study.bench import StudyBench
from lab.study.causes import CAUSES, Attribution
from lab.study.conditions import Condition, PromptBlock
from lab.study.oracle import Oracle
from tokalign.runtime.chat import Prompt
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.options import METHODS
from tokalign.runtime.rounds import Outcome, Round
from tokalign.runtime.translation.base import Pair
from tokalign.runtime.translation.committed_text import DraftText
from tokalign.tables.alignment import Alignment
from tokalign.tokenizer.vocabulary import TargetId

_LOOKED_AT = 8
"""How many of the draft's last ids decide whether it read the right context."""


def explained(condition: Condition, draft_models: Mapping[str, Decoder]) -> bool:
    """Whether the causes of a condition are looked for: translations at a draft length of 2."""
    translates = condition.name not in METHODS and condition.name != "none"
    return condition.k == 2 and translates and condition.draft in draft_models


class Explainer:
    """Decodes a block again, greedily and untimed, and says why each round ended.

    What the oracle guesses is kept, because all conditions of a block emit the same ids. One
    explainer is for one draft model.
    """

    def __init__(self, bench: StudyBench, draft: str) -> None:
        decoder = bench.others[draft]
        assert decoder.draft is not None, f"{draft} is no draft model"
        self._bench, self._decoder = bench, decoder
        self._pair = Pair(decoder.target.tokenizer, decoder.draft.tokenizer)
        self._session = DraftModelSession(decoder.draft.model)
        self._guesses: dict[tuple[PromptBlock, tuple[int, ...]], TargetId | None] = {}

    def explain(self, block: PromptBlock, condition: Condition) -> Attribution:
        """Why the rounds of one generation ended."""
        generation = self._bench.generation(block, condition)
        prompt = self._bench.prompts[block](self._decoder)
        for _ in generation:
            pass
        judge = _Judge(
            self._pair,
            self._decoder.drafting.alignment(),
            prompt,
            condition,
            lambda ids: self._guess(block, prompt, ids),
        )
        ids, causes = list(prompt.target), Counter[str]()
        for one in generation.rounds:
            causes[judge.cause(one, ids)] += 1
            ids += one.emitted
        tokens = len(generation.context.emitted)
        ordered = {cause: causes[cause] for cause in CAUSES if causes[cause]}
        return Attribution(replace(block, repeat=1), condition, tokens, ordered)

    def _guess(
        self, block: PromptBlock, prompt: Prompt, ids: Sequence[TargetId]
    ) -> TargetId | None:
        key = block, tuple(ids[len(prompt.target) :])
        if key not in self._guesses:
            oracle = Oracle(self._pair, self._decoder.drafting.alignment(), prompt)
            self._guesses[key] = oracle.guess(ids, self._session)
        return self._guesses[key]


class _Judge:
    """Finds the cause of one round after another. guess: the oracle's, after some ids."""

    def __init__(
        self,
        pair: Pair,
        alignment: Alignment,
        prompt: Prompt,
        condition: Condition,
        guess: Callable[[Sequence[TargetId]], TargetId | None],
    ) -> None:
        self._pair, self._alignment, self._condition = pair, alignment, condition
        self._guess = guess
        self._right = prompt.draft_text(pair)
        self._read: DraftText | None = None
        if condition.name == "naive" or condition.name.startswith("context:"):
            self._read = prompt.draft_text(pair, chunked=True)

    def cause(self, one: Round, committed: Sequence[TargetId]) -> str:
        """Why a round ended. Call it once for every round, in order."""
        context_is_right = self._follow(committed)
        match one.outcome(len(one.emitted) - 1):
            case Outcome.UNDRAFTED:
                return "nothing"
            case Outcome.CORRECTED:
                own = one.emitted[-1]
                before = [*committed, *one.emitted[:-1]]
                if self._guess(before) != own:
                    return "model"
                if not self._can_name(own):
                    return "vocabulary"
                return "boundary" if context_is_right else "context"
        return "length"

    def _follow(self, committed: Sequence[TargetId]) -> bool:
        """Whether the draft model reads what encoding the whole text would give, near its end."""
        if self._condition.name == "raw":
            return False
        self._right.follow(committed)
        if self._read is None:
            return True
        self._read.follow(committed)
        return self._read.ids[-_LOOKED_AT:] == self._right.ids[-_LOOKED_AT:]

    def _can_name(self, token: TargetId) -> bool:
        if self._condition.name == "intersection":
            return self._alignment.intersection.draft_of(token) is not None
        if self._condition.name == "raw":
            ours, theirs = self._pair.target.vocabulary.tokens, self._pair.draft.vocabulary.tokens
            return token < len(theirs) and theirs[token] == ours[token]
        return True
