"""Chat templates for tokenizers without one.

`generation` marks enclose what the model writes: the text of an assistant's turn and the marker that ends it.
"""

from __future__ import annotations

_TURN = r"""
{%- for message in messages %}
{{- HEAD }}
{%- if message.role == 'assistant' %}
{%- generation %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\n' + ((call.function or call) | tojson) + '\n</tool_call>' }}
{%- endfor %}
{{- TAIL }}
{%- endgeneration %}
{%- else %}
{{- (message.content or '') + TAIL }}
{%- endif %}
{{- AFTER }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- PROMPT }}
{%- endif %}"""


def _template(head: str, tail: str, after: str, prompt: str) -> str:
    """Return a template whose turns are: head, content, tail, after. All are Jinja expressions."""
    source = _TURN.strip()
    for name, expression in {"HEAD": head, "TAIL": tail, "AFTER": after, "PROMPT": prompt}.items():
        source = source.replace(name, expression)
    return source


#: Name -> Jinja source.
BUILT_IN: dict[str, str] = {
    # OpenAI's ChatML: each turn is between two markers, with its role in the first line.
    "chatml": _template(r"'<|im_start|>' + message.role + '\n'", "'<|im_end|>'", r"'\n'", r"'<|im_start|>assistant\n'"),
    # Plain text, for tokenizers without special tokens.
    "headings": _template(r"'### ' + message.role | capitalize + '\n'", r"'\n\n'", "''", r"'### Assistant\n'"),
    # The contents alone, one after the other: for data with its own markers.
    "text": _template("''", "''", "''", "''"),
}
