"""Chat templates: Jinja in a sandbox, with the variables and functions that Hugging Face's transformers provides.

A template comes with a downloaded tokenizer, so it is untrusted: the sandbox hides Python's internals, and limits of
time and memory stop a template that does not end or that grows without end, when it is compiled (Jinja computes what is
constant then) and when it is rendered.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from neoxargs.base.problems import Place, Problem, Problems
from neoxargs.files.chat_templates import TemplateSource

#: CPU seconds and bytes of memory that compiling and rendering may take, and characters that a template may write. All
#: are far beyond real use.
MAX_SECONDS, MAX_BYTES, MAX_CHARACTERS = 10.0, 1 << 30, 50_000_000
#: Characters that enclose generated text while a template is rendered with marks. Unicode reserves them for use inside
#: a program, so they are in no text.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class TemplateError(Exception):
    """A template cannot render a conversation. line: of the template, 0 if unknown."""

    def __init__(self, what: str, line: int = 0, hint: str = "") -> None:
        super().__init__(what)
        self.line, self.advice = line, hint


class Turns(NamedTuple):
    """The text of a conversation, and where the part of each message ends in it."""

    text: str
    ends: list[int]


class Template:
    """A compiled template.

    special: the names and texts of the tokenizer's special tokens, such as `eos_token`.
    now: the time that the template may write, the same for all conversations of a run.
    Raises Problems if the text is not valid Jinja, or exceeds a limit.
    """

    def __init__(self, source: TemplateSource, special: Mapping[str, str], now: datetime) -> None:
        self.source, self.special = source, special
        # trim_blocks and lstrip_blocks: as transformers sets them, or templates would write other blanks and lines.
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Marks, "jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _to_json
        environment.globals |= {
            "raise_exception": _raise,
            "strftime_now": now.strftime,
            "namespace": _SafeNamespace,
            "dict": _Dict(),
        }
        try:
            with limits():
                self._compiled = environment.from_string(source.text)
                self._is_sequential = is_sequential(environment.parse(source.text))
        except jinja2.TemplateSyntaxError as error:
            raise Problems(self._invalid(error)) from error
        except Exception as error:  # Python's compiler and constant expressions can raise any error
            what = f"the chat template cannot be compiled: {_sentence(error)}"
            raise Problems(Problem(what, where=Place(source.name, 0, 1), id="chat-template-not-compiled")) from error
        self.has_marks = bool(_GENERATION.search(source.text))
        self.takes_parts = self._takes_parts()

    def render(
        self,
        messages: list[dict[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        prompt: bool = False,
        marks: bool = False,
    ) -> str:
        """Return the text of the messages; with `prompt`, a generation prompt follows.

        variables: `tools`, `documents` and others. marks: enclose generated text in OPEN and CLOSE.
        Raises TemplateError.
        """
        given = {"tools": None, "documents": None, **self.special, **(variables or {})}
        # Last: a conversation's own variables cannot replace these.
        given |= {"messages": messages, "add_generation_prompt": prompt, _MARKS: marks}
        try:
            with limits():
                return "".join(_limited(self._compiled.generate(given), messages))
        except TemplateError as error:
            error.line = error.line or _template_line(error.__traceback__)
            raise
        except Exception as error:  # any error of Python can occur in a template
            raise TemplateError(_sentence(error), _template_line(error.__traceback__)) from error

    def turns(self, messages: list[dict[str, Any]], variables: Mapping[str, Any] | None) -> Turns | None:
        """Return the text of the messages in parts, if the first parts and `ending` are the text of the first messages.

        None if that is not certain, or if the template fails.
        """
        if not self._is_sequential:
            return None
        observed = _Observed(messages)
        try:
            text = self.render(observed, variables)
        except TemplateError:  # raised for a list with a sentence about it
            return None
        return Turns(text, observed.ends) if len(observed.ends) == len(messages) else None

    def ending(self, messages: list[dict[str, Any]], variables: Mapping[str, Any] | None, prompt: bool) -> str:
        """Return what follows the part of the last message, if `turns` returns parts. Raises TemplateError."""
        observed = _Observed(messages[:1])
        return self.render(observed, variables, prompt=prompt)[observed.ends[0] :]

    def _invalid(self, error: jinja2.TemplateSyntaxError) -> Problem:
        lines = self.source.text.splitlines()
        text = lines[error.lineno - 1] if error.lineno <= len(lines) else ""
        where = Place(self.source.name, error.lineno if self.source.first_line else 0, 1, text, max(1, len(text)))
        subject = "the chat template" if self.source.first_line else f"line {error.lineno} of the chat template"
        return Problem(f"{subject} is not valid Jinja: {error.message}", where=where, id="chat-template-not-jinja")

    def _takes_parts(self) -> bool:
        """Whether the template expects a message's content as a list of parts instead of printing the list."""
        probe = "\ufdd2"
        # A template that knows only texts prints the Python list, with its quotes, or fails.
        try:
            text = self.render([{"role": "user", "content": [{"type": "text", "text": probe}]}])
        except TemplateError:
            return False
        return probe in text and "'text'" not in text and '"text"' not in text


_MARKS = "_generation_marks"


class _Environment(ImmutableSandboxedEnvironment):
    # Only operators that are listed here pass through call_binop.
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse products that would be too large for the memory."""
        if operator == "**" and max(abs(left), abs(right)) > 1000:
            raise OverflowError(f"{left} ** {right} is too large")
        if operator == "*":
            # Either side may be what is repeated: 2 * "ab" and "ab" * 2.
            _check_product(left, right)
            _check_product(right, left)
        return super().call_binop(context, operator, left, right)


def _check_product(repeated: Any, times: Any) -> None:
    if isinstance(repeated, (str, list, tuple)) and isinstance(times, int) and len(repeated) * times > MAX_CHARACTERS:
        size = len(repeated) * times
        raise OverflowError(f"the product would have {size:,} characters or items, more than {MAX_CHARACTERS:,}")


class _Marks(Extension):
    """`{% generation %} ... {% endgeneration %}`, which encloses what the model writes."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marked = nodes.ContextReference()
        return nodes.CallBlock(self.call_method("_enclose", [marked]), [], [], body).set_lineno(line)

    def _enclose(self, context: Any, caller: Macro) -> str:
        text: str = caller()
        return f"{OPEN}{text}{CLOSE}" if context.get(_MARKS) else text


class _SafeNamespace(Namespace):
    """Jinja's namespace without attributes that begin with an underscore."""

    # Without a parameter `self`, so that a template may use this name for an attribute.
    def __init__(*args: Any, **values: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **values)
        for name in values:
            _no_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _no_underscore(name)
        Namespace.__setitem__(self, name, value)


def _no_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the namespace attribute {name} must not begin with an underscore")


class _Dict:
    """`dict` in a template: makes dictionaries, and has none of the class's own attributes but `fromkeys`."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> None:
    raise TemplateError(f"the template reports: {message}")


class _Observed(list[dict[str, Any]]):
    """Messages that note how many characters are written when a loop asks for the next message."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        super().__init__(messages)
        self.written = 0
        self.ends: list[int] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for message in super().__iter__():
            yield message
            self.ends.append(self.written)


def _limited(pieces: Iterator[str], messages: list[dict[str, Any]]) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if isinstance(messages, _Observed):
            messages.written = size
        if size > MAX_CHARACTERS:
            raise TemplateError(f"the template writes more than {MAX_CHARACTERS:,} characters")
        yield piece


MESSAGES, PROMPT, LOOP = "messages", "add_generation_prompt", "loop"
#: Attributes of `loop` that do not depend on later messages.
_OF_EARLIER = ("index", "index0", "first", "previtem", "depth", "depth0", "cycle", "changed")
_OTHER_TEMPLATES: Any = (nodes.Extends, nodes.Block, nodes.Include, nodes.Import, nodes.FromImport)
#: Nodes, other than names, that set a name.
_SETTERS: Any = (nodes.Macro, nodes.NSRef)


def is_sequential(tree: nodes.Template) -> bool:
    """Whether it is certain that a template writes a part for each message, in order, that depends on no later message.

    True of templates with one loop over all messages at the top level. Before the loop and in it, they read only the
    message of the loop and the first one, and not whether there is a generation prompt. What they write after the loop
    depends on nothing that the loop changes.
    """
    copies = [node for node in tree.body if isinstance(node, nodes.Assign) and _is_name(node.node, MESSAGES)]
    conversation = (MESSAGES, *(copy.target.name for copy in copies if isinstance(copy.target, nodes.Name)))
    loops = [node for node in tree.body if isinstance(node, nodes.For) and _is_name(node.iter, *conversation)]
    if len(loops) != 1 or loops[0].test or loops[0].recursive or loops[0].else_ or tree.find(_OTHER_TEMPLATES):
        return False
    first = [
        item.node for item in tree.find_all(nodes.Getitem) if isinstance(item.arg, nodes.Const) and item.arg.value == 0
    ]
    known = [
        item.node for item in tree.find_all(nodes.Getattr) if item.attr in _OF_EARLIER and _is_name(item.node, LOOP)
    ]
    allowed = {loops[0].iter, *(copy.node for copy in copies), *first, *known}
    after = {name for node in tree.body[tree.body.index(loops[0]) + 1 :] for name in node.find_all(nodes.Name)}
    read = [name for name in tree.find_all(nodes.Name) if name.ctx == "load"]
    changed = _changed(tree)
    return (
        all(name in allowed for name in read if name.name in (*conversation, LOOP))
        and all(name in after for name in read if name.name == PROMPT)
        and not any(name.name in changed for name in after)
        and not any(changed[name] for name in (MESSAGES, PROMPT, LOOP))
        and all(changed[copy] == 1 for copy in conversation[1:])
    )


def _is_name(node: nodes.Node, *names: str) -> bool:
    return isinstance(node, nodes.Name) and node.name in names


def _changed(tree: nodes.Template) -> Counter[str]:
    """Return the names that a template sets, and how often."""
    found = Counter(name.name for name in tree.find_all(nodes.Name) if name.ctx != "load")
    return found + Counter(node.name for node in tree.find_all(_SETTERS))


class _OutOfTime(Exception):
    pass


@contextmanager
def limits() -> Iterator[None]:
    """Raise TemplateError after MAX_SECONDS, and MemoryError beyond MAX_BYTES. Only the main thread is limited."""
    with time_limit(MAX_SECONDS), memory_limit(MAX_BYTES):
        yield


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Let this process fail with a MemoryError when it takes `size` bytes more. Only the main thread sets a limit.

    Has no effect where the kernel does not tell how much a process has (not Linux).
    """
    used = None
    with suppress(OSError):
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    if used is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    allowed = [limit for limit in (used + size, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(allowed), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TemplateError after so many seconds of this process's CPU time. Only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Virtual: CPU time of this process, so that a busy machine does not change the result.
    previous = signal.signal(signal.SIGVTALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    except _OutOfTime as error:
        line = _template_line(error.__traceback__)
        raise TemplateError(f"the template did not finish within {seconds:g} s", line) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _out_of_time(_number: int, _frame: FrameType | None) -> None:
    raise _OutOfTime


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"it needs more than {MAX_BYTES >> 30} GiB of memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text if isinstance(error, jinja2.TemplateError | TemplateError) else f"{type(error).__name__}: {text}"


def _template_line(trace: TracebackType | None) -> int:
    """Return the innermost line of the template in a traceback, 0 if there is none."""
    line = 0
    while trace:
        # Jinja's names of a template without a file, in its code and in tracebacks that Jinja rewrites.
        if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
