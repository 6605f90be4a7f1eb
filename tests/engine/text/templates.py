"""Chat templates in the manner of those that models publish, each with the tokens it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken


@dataclass(frozen=True, slots=True)
class Published:
    """A template, its added tokens and its entries of tokenizer_config.json."""

    source: str
    tokens: tuple[str, ...]
    plain_tokens: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)

    def added(self) -> list[AddedToken]:
        """The tokens as the library takes them."""
        return [
            *(AddedToken(token, special=True, normalized=False) for token in self.tokens),
            *(AddedToken(token, special=False, normalized=False) for token in self.plain_tokens),
        ]


LLAMA3 = Published(
    """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    config={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
)

MISTRAL = Published(
    """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
""",
    ("<s>", "</s>", "[INST]", "[/INST]"),
    config={"bos_token": "<s>", "eos_token": "</s>"},
)

PHI3 = Published(
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% else %}"
    "{{'<|' ~ message['role'] ~ '|>\\n' ~ message['content'] ~ '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    config={"eos_token": "<|end|>"},
)

QWEN3 = Published(
    """{%- macro turn(message, content) -%}
{{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{ content }}{% endgeneration %}{{ '<|im_end|>' + '\\n' }}
{%- endmacro -%}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- if loop.index0 > ns.last %}
                {%- set content = '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
    {%- endif %}
    {{- turn(message, content) }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    (),
    plain_tokens=("<think>", "</think>", "<tool_response>"),
)

PUBLISHED = {"llama3": LLAMA3, "mistral": MISTRAL, "phi3": PHI3, "qwen3": QWEN3}
