"""A model that answers in `tokalign chat`, with what lasts from turn to turn.

Each turn is a whole prompt. The sessions of both models compare it with what their caches hold, so
history may be edited, and only what is new is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokalign.cli.dialogue import AnswerSettings, Dialogue
from tokalign.cli.entries import Interrupts, typing_hidden
from tokalign.cli.failures import explained
from tokalign.cli.generation import Printer, PromptOptions
from tokalign.cli.output import note

if TYPE_CHECKING:
    from tokalign.conversation.blocks import Step
    from tokalign.runtime.chat import Prompt
    from tokalign.runtime.decoder import Decoder
    from tokalign.runtime.generate import Generation
    from tokalign.runtime.rounds import Outcome, Round

_ANSWER_SHARE = 4
"""A quarter of the context is kept for the answer, unless it is limited to fewer tokens."""


class ChatModel:
    """A decoder and its sessions. keeps: whether contexts are kept on disk."""

    def __init__(self, decoder: Decoder, options: PromptOptions, *, keeps: bool) -> None:
        self._decoder, self._options = decoder, options
        self._logits = decoder.drafting.with_stores().logits  # for the whole conversation
        self._files = decoder.context_files("chat", most_bytes=None if keeps else 0, note=note)
        self._open_sessions()

    def kept(self) -> str:
        """What is kept between turns, in words."""
        layers = [*self._target.layers, *([] if self._draft is None else self._draft.layers)]
        size = sum(layer.nbytes for layer in layers)
        size += 0 if self._logits is None else self._logits.nbytes
        return f"{len(self._target.held)} tokens of context are kept, in {size / 1e6:.1f} MB"

    def answer(
        self, dialogue: Dialogue, settings: AnswerSettings, *, retries: int, color: bool
    ) -> tuple[dict[str, Any], Sequence[Round]]:
        """Print the answer to the last message.

        retries: how often it was answered before, which changes the seed.
        Returns: as `Generation.summary`, with `cached_tokens`, and with what the answer was given
        to begin with; `finish_reason` is "interrupted" after Ctrl-C. Also its rounds.
        Raises: TokalignError for a message that cannot be answered; KeyboardInterrupt after a
        Ctrl-C before the answer begins.
        """
        left_out = dialogue.left_out
        prompt = self._prompt(dialogue, settings.max_tokens)
        cached = self._files.resume(prompt.target, self._target, self._draft)
        try:
            generation = self._begin(prompt, settings, retries)
        except KeyboardInterrupt:  # while a pack was looked for or compiled
            note("left out; this chat goes on without that dictionary")
            self._decoder = replace(
                self._decoder, drafting=replace(self._decoder.drafting, packs=None)
            )
            generation = self._begin(prompt, settings, retries)
        if count := dialogue.left_out - left_out:
            note(f"the context is full: the model no longer reads the oldest {count} messages")
        beginning = self._options.prefill_response or ""
        with typing_hidden(), Interrupts() as interrupts:
            printer = Printer(color=color, markdown=settings.markdown)
            text = self._print(generation, printer, beginning, interrupts)
            reason = {"finish_reason": "interrupted"} if interrupts.count else {}
            try:  # the answer is there, whatever becomes of its context
                self._decoder.remember()
                self._files.keep_of(self._target, self._draft)
            except KeyboardInterrupt:
                pass
            except Exception as error:
                self._open_sessions()
                note(f"its context is not kept: {explained(error)}")
        summary = generation.summary() | {"text": beginning + text, "cached_tokens": cached}
        return summary | reason, generation.rounds

    def _prompt(self, dialogue: Dialogue, max_tokens: int | None) -> Prompt:
        """The conversation as ids. Once it has no room for an answer, the oldest turns leave. The
        rest takes half of the context then, so the next turns can use the caches again."""
        room = self._target.context_length
        answer = min(max_tokens or room, room // _ANSWER_SHARE)

        def prompt() -> Prompt:
            return self._options.prompt(self._decoder, dialogue.read)

        whole = prompt()
        if len(whole.target) + answer <= room:
            return whole
        dialogue.leave_out(lambda: len(prompt().target) <= room // 2)
        return prompt()

    def _begin(self, prompt: Prompt, settings: AnswerSettings, retries: int) -> Generation:
        from tokalign.runtime.generate import Generation
        from tokalign.runtime.request import Request

        sampling = settings.sampling
        request = Request(
            prompt,
            max_tokens=settings.max_tokens,
            sampler=replace(sampling, seed=sampling.seed + retries),
            stop=self._options.stop,
            logits=self._logits,
        )
        return Generation(
            self._decoder, request, target_session=self._target, draft_session=self._draft
        )

    def _print(
        self, generation: Generation, printer: Printer, beginning: str, interrupts: Interrupts
    ) -> str:
        """Print an answer as it comes. Returns: what it tells the user. gpt-oss answers in
        channels, whose marks its template refuses in a history; so no mark is shown or kept, and
        what is thought is shown alone.

        The first Ctrl-C takes effect between two rounds, or between two steps that read a long
        prompt. After the second one, or full memory, the caches are made anew.
        """
        from tokalign.conversation.answer_form import AnswerForm, has_headers
        from tokalign.conversation.blocks import Blocks

        specials = self._decoder.target.tokenizer.vocabulary.special_ids
        read = Blocks(AnswerForm(has_channels=has_headers(specials)))

        def show(steps: Iterable[Step], outcome: Outcome | None = None) -> None:
            for step in steps:
                is_next = step.what == "begin" and step.at > 0
                printer.write("\n\n" if is_next else step.text, outcome)

        printer.write(beginning)
        try:
            with closing(generation.by_round()) as rounds:
                if self._draft is not None:
                    self._draft.after_step = interrupts.check
                try:
                    for pieces in rounds:
                        if not pieces:
                            printer.reading(generation.reading)
                        for piece in pieces:
                            show(read.feed(piece.text), piece.outcome)
                        if interrupts.count:
                            break
                except KeyboardInterrupt:
                    if interrupts.count > 1:
                        self._open_sessions()
                except Exception:
                    self._open_sessions()
                    raise
            show(read.feed(generation.rest()))
            show(read.end())
        finally:
            printer.end()
        return "\n\n".join(block.text for block in read.blocks if block.kind == "text")

    def _open_sessions(self) -> None:
        """Sessions that last from turn to turn: a turn computes what the caches do not hold."""
        self._target, self._draft = self._decoder.open_target(), self._decoder.open_draft()
