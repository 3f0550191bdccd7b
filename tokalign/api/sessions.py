"""The sessions of one call of the API, and the caches that its caller keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlx_lm.utils import does_model_support_input_embeddings

from tokalign.api.objects import split_cache
from tokalign.api.responses import GenerationResponse
from tokalign.arguments import shown
from tokalign.errors import UsageError
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.generate import Generation
from tokalign.runtime.proposal import Array
from tokalign.tables.finding import Note
from tokalign.tokenizer.vocabulary import TargetId


class CallSessions:
    """The sessions of one call, which may go on with the caches that the caller keeps.

    prompt_cache: the target's layers, then the draft's if there is a draft model. note: told of a
    cache whose ids are not known.
    """

    def __init__(self, decoder: Decoder, prompt_cache: list[Any] | None, note: Note) -> None:
        self._prompt_cache, self._model = prompt_cache, decoder.target.model
        ours, theirs = split_cache(prompt_cache, decoder.target.model)
        self.target = decoder.open_target(ours)
        self.draft = decoder.open_draft(theirs)
        for name, session in (("target", self.target), ("draft", self.draft)):
            if session is not None and session.unknown_positions:
                note(
                    f"the {name}'s prompt cache holds text that was read without tokalign, so its "
                    "ids are not known; processors and drafters see what follows it, as in mlx-lm"
                )

    def embed(self, ids: Sequence[TargetId], embeddings: Array) -> list[TargetId]:
        """Have the prompt read as these embeddings. Returns: its ids; 0 where none were given."""
        if not does_model_support_input_embeddings(self._model):
            raise UsageError("input_embeddings: this model reads ids alone; pass a prompt instead")
        shape: tuple[int, ...] = tuple(getattr(embeddings, "shape", ()))
        if len(shape) != 2 or (ids and len(ids) != shape[0]):
            raise UsageError(
                f"input_embeddings has to be an array f[{len(ids) or 'n'}, dimension], one row for "
                f"each id of the prompt, not {shown(embeddings)} of shape {shape}"
            )
        self.target.embed(len(self.target.held), embeddings)
        return list(ids) or [TargetId(0)] * shape[0]

    def with_progress(
        self,
        responses: Iterator[GenerationResponse],
        total: int,
        report: Callable[[int, int], None],
    ) -> Iterator[GenerationResponse]:
        """Report how much of the prompt has been read: nothing, every step, all of it."""
        done = 0

        def count(read: int) -> None:
            nonlocal done
            done = min(total, done + read)
            report(done, total)

        self.target.watch_prefill(count)
        report(0, total)
        first = next(responses, None)
        report(total, total)
        if first is not None:
            yield first
            yield from responses

    def settled(
        self, responses: Iterator[GenerationResponse], generation: Generation
    ) -> Iterator[GenerationResponse]:
        """Afterwards the caches hold the prompt and every token of the responses.

        After an error, such as one of a callback that cancels, they hold what was read by then.
        """
        held = len(generation.context.prompt)
        try:
            for response in responses:
                held += 1
                yield response
        except (Exception, KeyboardInterrupt):
            held = min(held, len(self.target.held))
            raise
        finally:
            self.target.settle(generation.context.ids[:held])
            assert self._prompt_cache is not None
            rest = self._prompt_cache[len(self.target.layers) :]
            if self.draft is not None:
                self.draft.settle(self.draft.held)
                rest = self.draft.layers
            self._prompt_cache[:] = [*self.target.layers, *rest]
