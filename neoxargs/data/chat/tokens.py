"""Text with trained ranges to token ids with labels.

The whole text is tokenised at once; the tokenizer's own offsets say which tokens a range covers. A token that a
boundary runs through is trained, as transformers does for its assistant masks. No special token is added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from neoxargs.base.problems import Problem, Problems
from neoxargs.data.chat.masks import Marked, Span
from neoxargs.data.encode import Recipe
from neoxargs.data.tokenizer import ByteTokenizer, FastTokenizer, Ids, build_tokenizer, valid
from neoxargs.files.chat_templates import ChatSettings
from neoxargs.files.token_files.index import IGNORED

#: Texts in templates that are meant to be special tokens. U+FF5C is the full-width bar of DeepSeek's.
_MARKER = re.compile("<[|\uff5c][^<>|\uff5c\\s]+[|\uff5c]>|<(?:start|end)_of_turn>|\\[/?INST\\]|</?s>")


class Located(Protocol):
    """The tokens of one text and where they are in it."""

    ids: Ids

    def token_at(self, position: int) -> int:
        """Return the index of the first token that ends after a character."""
        ...

    def span(self, token: int) -> Span: ...


@dataclass
class Labelled:
    """The tokens of a conversation; both arrays have the same length."""

    ids: Ids
    labels: Ids
    """The token itself where it is trained, otherwise IGNORED. Not shifted."""
    crossing: bool
    """Whether a token contains both trained and untrained text."""
    located: Located
    """The tokens of the text: `ids` before cutting, without the appended end token."""

    def cut(self, length: int) -> Labelled:
        return replace(self, ids=self.ids[:length], labels=self.labels[:length])

    @property
    def has_loss(self) -> bool:
        return bool((self.labels != IGNORED).any())

    @property
    def end(self) -> int:
        """Number of characters that the tokens cover."""
        count = min(len(self.ids), len(self.located.ids))
        return self.located.span(count - 1)[1] if count else 0

    def last_of(self, text: str) -> int | None:
        """Return the last token of the text that is more than white space; None if there is none."""
        index = self.located.token_at(len(text.rstrip()) - 1) if text.strip() else len(self.located.ids)
        return int(self.located.ids[index]) if index < len(self.located.ids) else None

    def trained_spans(self) -> list[Span]:
        """Return the ranges of characters of trained tokens."""
        trained = self.labels[: len(self.located.ids)] != IGNORED
        # Both ends of every run of trained tokens: its first index, and the index after its last.
        edges = np.flatnonzero(np.diff(trained, prepend=False, append=False)).tolist()
        span = self.located.span
        return [(span(start)[0], span(stop - 1)[1]) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


class ChatTokenizer:
    """A tokenizer with offsets, and the end token that follows a conversation.

    Raises Problems if the tokenizer cannot be built, has no offsets or lacks the end token that its folder names.
    """

    def __init__(self, recipe: Recipe, settings: ChatSettings) -> None:
        tokenizer = build_tokenizer(recipe)
        if not isinstance(tokenizer, (FastTokenizer, ByteTokenizer)):
            what = f"tokenizer_type ({recipe.tokenizer_type}) does not report which characters each token covers"
            hint = "convert the tokenizer to a tokenizer.json and set tokenizer_type to HFTokenizer"
            raise Problems(Problem(what, hint=hint, id="tokenizer-without-offsets", about=("tokenizer_type",)))
        if isinstance(tokenizer, FastTokenizer):
            # A post-processor only adds special tokens, and trims spaces from offsets: both are unwanted here.
            tokenizer.inner.post_processor = None
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        # What ends a document anywhere else, unless the tokenizer's folder says that nothing does (`eos_token: null`).
        has_end = not settings.names_end or "eos_token" in settings.special
        self.end = tokenizer.eod if has_end else None
        self.special = dict(settings.special)
        if not settings.names_end and (text := self.text_of_end()) and self.is_one_token(text):
            self.special["eos_token"] = text

    def text_of_end(self) -> str:
        """Return the end token's text, "" if it has none."""
        if self.end is None or not isinstance(self.tokenizer, FastTokenizer):
            return ""
        return self.tokenizer.inner.id_to_token(self.end) or ""

    def split_markers(self, template: str) -> list[str]:
        """Return the texts in a template that look like special tokens but are several tokens."""
        return [marker for marker in dict.fromkeys(_MARKER.findall(template)) if not self.is_one_token(marker)]

    def is_one_token(self, text: str) -> bool:
        return len(self._locate([text])[0].ids) == 1

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, in which special tokens are recognised and to which none is added."""
        found: list[int] = self._locate([text])[0].ids.tolist()
        return found

    def label(self, conversations: Sequence[Marked], append_end: bool) -> list[Labelled]:
        """Return the tokens of conversations, each with the end token if there is one and `append_end` is set."""
        located = self._locate([conversation.text for conversation in conversations])
        labelled = [_label(c.spans, tokens) for c, tokens in zip(conversations, located, strict=True)]
        return [self._with_end(tokens) for tokens in labelled] if append_end else labelled

    def ended_twice(self, conversations: Sequence[Marked]) -> list[Labelled]:
        """Return the tokens of conversations for a reward model, each with two end tokens.

        Only the second has a label. It is predicted at the first end token, and there the model gives its reward.
        """
        assert self.end is not None
        found = []
        for tokens in self._locate([conversation.text for conversation in conversations]):
            ids = np.append(tokens.ids, np.array([self.end] * 2, np.int32))
            labels = np.full(len(ids), IGNORED, np.int32)
            labels[-1] = self.end
            found.append(Labelled(ids, labels, crossing=False, located=tokens))
        return found

    def _with_end(self, tokens: Labelled) -> Labelled:
        """Append the end token, which is trained if the last token is."""
        if self.end is None or not len(tokens.ids):
            return tokens
        label = self.end if tokens.labels[-1] != IGNORED else IGNORED
        return replace(
            tokens, ids=np.append(tokens.ids, np.int32(self.end)), labels=np.append(tokens.labels, np.int32(label))
        )

    def _locate(self, texts: list[str]) -> Sequence[Located]:
        if isinstance(self.tokenizer, ByteTokenizer):
            return [_Bytes(self.tokenizer, text) for text in texts]
        encodings = self.tokenizer.inner.encode_batch(list(map(valid, texts)), add_special_tokens=False)
        return [_Encoding(encoding, len(text)) for encoding, text in zip(encodings, texts, strict=True)]


def _label(spans: Sequence[Span], tokens: Located) -> Labelled:
    ids, labels = tokens.ids, np.full(len(tokens.ids), IGNORED, dtype=np.int32)
    crossing = False
    for start, end in spans:
        first, stop = tokens.token_at(start), tokens.token_at(end)
        crossing |= first < len(ids) and tokens.span(first)[0] < start
        # The last token of the range goes on beyond its end.
        if stop < len(ids) and tokens.span(stop)[0] < end:
            crossing, stop = True, stop + 1
        labels[first:stop] = ids[first:stop]
    return Labelled(ids, labels, crossing, tokens)


class _Encoding:
    """An encoding of the `tokenizers` library."""

    def __init__(self, encoding: Any, length: int) -> None:
        self.ids: Ids = np.array(encoding.ids, dtype=np.int32)
        self._encoding, self._length = encoding, length

    def token_at(self, position: int) -> int:
        # A character that a normalizer removes is in no token.
        for character in range(position, self._length):
            token: int | None = self._encoding.char_to_token(character)
            if token is not None:
                return token
        return len(self.ids)

    def span(self, token: int) -> Span:
        start, end = self._encoding.token_to_chars(token)
        return start, end


class _Bytes:
    """The bytes of a text, one token each."""

    def __init__(self, tokenizer: ByteTokenizer, text: str) -> None:
        self.ids: Ids = np.array(tokenizer.tokenize(text), dtype=np.int32)
        self._text = text

    def token_at(self, position: int) -> int:
        return len(self._text[:position].encode("utf-8", errors="surrogatepass"))

    def span(self, token: int) -> Span:
        # Incomplete characters at the end are left out, so all bytes of a character have the same span.
        before = bytes(self.ids[:token].tolist()).decode("utf-8", errors="ignore")
        return len(before), len(before) + 1
