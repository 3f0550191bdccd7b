"""A conversation: contexts that last from turn to turn, so that a turn computes only what is new.

It holds both models' caches, the text that context copy searches, and the logit store. A new turn
is given as a whole prompt. What it shares with what the caches hold is not computed again; what
follows is trimmed, so history may be edited, and a chat template may write the last turn's end
anew. A cache that cannot be trimmed is filled again from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokalign.errors import CacheError
from tokalign.runtime.decoder import Decoder, Prompt
from tokalign.runtime.draft.context_copy import ContextCopy
from tokalign.runtime.draft.logit_store import LogitStore
from tokalign.runtime.draft.suffix_automaton import SuffixAutomaton
from tokalign.runtime.generate import Generation
from tokalign.runtime.interfaces import Sampler
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.target_session import TargetModelSession
from tokalign.tokenizer.vocabulary import TargetId


class Conversation:
    """The contexts of one conversation. It serves one generation at a time.

    decoder: what every turn is decoded with; its options may be replaced from turn to turn, its
    models may not. target, draft: sessions to go on with, such as those of a prompt-cache file.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        target: TargetModelSession | None = None,
        draft: DraftModelSession | None = None,
    ) -> None:
        self.decoder = decoder
        self.target = target or _open_target(decoder)
        self.draft = draft or decoder.open_draft()
        self._copy, kept = ContextCopy(), decoder.drafting.logits
        self._logits = LogitStore() if kept is None else kept

    @property
    def held(self) -> Sequence[TargetId]:
        """The ids of the target's cache: a prompt that begins with them computes only the rest."""
        return self.target.held

    @property
    def nbytes(self) -> int:
        """Bytes that the caches and the logit store take."""
        layers = [*self.target.layers, *([] if self.draft is None else self.draft.layers)]
        return self._logits.nbytes + sum(int(layer.nbytes) for layer in layers)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        sampler: Sampler | None = None,
        expected: SuffixAutomaton | None = None,
    ) -> Generation:
        """One turn. Parameters and errors are those of `Generation`.

        prompt: the whole conversation so far. sampler: the decoder's by default.
        expected: a text that the output may largely repeat, to copy from (`expected_text`).
        """
        self._copy.begin(prompt.target)
        drafting = self.decoder.drafting
        drafting = replace(
            drafting,
            context_copy=self._copy,
            logits=self._logits if drafting.logits is None else drafting.logits,
            outputs=(*drafting.outputs, *([] if expected is None else [expected])),
        )
        decoder = replace(self.decoder, drafting=drafting, sampler=sampler or self.decoder.sampler)
        return Generation(
            decoder,
            prompt,
            max_tokens=max_tokens,
            stop=stop,
            target_session=self.target,
            draft_session=self.draft,
        )


def _open_target(decoder: Decoder) -> TargetModelSession:
    """A session that can be rewound to an earlier turn, if the model's cache allows it."""
    try:
        return decoder.open_target(rewinds=True)
    except CacheError:
        return decoder.open_target()


_LEAD = 8
"""How many ids of the prompt stand before an expected text, so that its beginning is found."""


def expected_text(prompt: Sequence[TargetId], ids: Sequence[TargetId]) -> SuffixAutomaton:
    """A text that may come after `prompt`, as context copy searches it.

    Source: OpenAI's predicted outputs.
    """
    return SuffixAutomaton([*prompt[-_LEAD:], *ids])
