"""`HuggingFaceTokenizer`: a tokenizer of `transformers` for rollouts, with or without a chat template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hookline.policies.protocol import PolicyError

if TYPE_CHECKING:
    from hookline_hookspecs import Turn

__all__ = ["HuggingFaceTokenizer"]

RESPONSE: Final = "[[response 5d1c]]"
"""Stands for each response where a template writes a conversation. The policy's own tokens are never written again."""


class HuggingFaceTokenizer:
    """A `Tokenizer` from a tokenizer of `transformers`.

    :param tokenizer: such as `AutoTokenizer.from_pretrained` returns.
    :param more_ends: end tokens besides the tokenizer's own, such as those of a generation config.
    """

    def __init__(self, tokenizer: Any, more_ends: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        ends = dict.fromkeys(end for end in (tokenizer.eos_token_id, *more_ends) if end is not None)
        if not ends:
            raise PolicyError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no end token, so no response would end: set its "
                "eos_token and save it again"
            )
        self.end: tuple[int, ...] = tuple(ends)
        self.size: int = len(tokenizer)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def encode_messages(self, messages: Sequence[Turn], before: Sequence[Turn] = ()) -> list[int]:
        """The messages as the chat template writes them. Without a template, their texts as they are.

        The first messages of a conversation without a template follow a start token, if there is one.
        """
        if self.tokenizer.chat_template:
            tokens = self.encode(self._written(messages, before))
        elif before:
            tokens = [self.end[0], *self.encode("".join(message.text for message in messages))]
        else:
            tokens = self.tokenizer.encode("".join(message.text for message in messages))
            if tokens and tokens[-1] in self.end:  # some tokenizers end every text
                tokens = tokens[:-1]
        if not tokens:
            shown = ", ".join(repr(message.text) for message in messages)
            raise PolicyError(f"the prompt {shown} has no tokens, so there is nothing to continue: write a prompt")
        return tokens

    def _written(self, messages: Sequence[Turn], before: Sequence[Turn]) -> str:
        """What the template writes for these messages, up to where the next response begins.

        A template may write a message in another way because of those around it, so it is given all of them.
        """
        chat = [
            {"role": turn.role, "content": RESPONSE if turn.role == "assistant" else turn.text}
            for turn in (*before, *messages)
        ]
        roles = ", ".join(turn["role"] for turn in chat)
        try:
            text: str = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # of the template's own, or of Jinja
            raise PolicyError(
                f"the chat template of {self.tokenizer.name_or_path!r} rejects a conversation with the roles {roles}: "
                f"{error}. Let the environment use other roles, or change the template"
            ) from error
        if not before:
            return text
        _, found, after = text.rpartition(RESPONSE)
        if not found:
            raise PolicyError(
                f"the chat template of {self.tokenizer.name_or_path!r} leaves out the response in a conversation with "
                f"the roles {roles}, so what follows it cannot be found: change the template"
            )
        return after

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end token, without special tokens."""
        kept = []
        for token in tokens:
            if token in self.end:
                break
            kept.append(token)
        text: str = self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
