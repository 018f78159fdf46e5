"""Every field of vLLM's request bodies, and what the gateway does with it.

A field that is not listed for its route does not reach vLLM, so a field that a later vLLM adds is ignored
until somebody has decided on it here (a test compares the table with the installed vLLM).
"""

from __future__ import annotations

import enum
from typing import Final


class Treatment(enum.Enum):
    """What happens to a field that a client sends."""

    ALLOW = "allow"
    """Passed on; it shapes the client's own answer only."""
    STRIP = "strip"
    """Left out: harmless to ask for, not the client's to say."""
    REFUSE = "refuse"
    """400 where it asks for something (null, false, empty and 0 do not)."""


_A, _S, _R = Treatment.ALLOW, Treatment.STRIP, Treatment.REFUSE
Table = dict[str, tuple[Treatment, str]]


def _allowed(reason: str, names: str) -> Table:
    return dict.fromkeys(names.split(), (_A, reason))


_SAMPLING: Final = (
    _allowed(
        "sampling of the client's own answer",
        "frequency_penalty presence_penalty repetition_penalty temperature top_p top_k seed stop"
        " stop_token_ids include_stop_str_in_output ignore_eos skip_special_tokens structured_outputs",
    )
    | _allowed("sampled without drafts, see adaptive.engine.logits", "min_p logit_bias")
    | _allowed("which model, how to answer", "model stream user")
)

_CONTROL: Final[Table] = {
    "cache_salt": (_S, "names whose prefix-cache blocks may be read; set per tenant"),
    "vllm_xargs": (_S, "carries the request's plan to the engine"),
    "kv_transfer_params": (_S, "steers KV transfer between engines, and carries reports out of the engine"),
    "ec_transfer_params": (_S, "steers encoder-cache transfer between engines"),
    "priority": (_S, "would let a tenant overtake the others"),
    "request_id": (_S, "the gateway's id is the one in logs, headers and traces"),
    "session_id": (_S, "routing hint that tenants could use to collide with each other"),
    "watermarking": (_S, "the operator decides whether answers are watermarked"),
    "mm_payload": (_S, "of the render routes only"),
    "return_mm_kwargs": (_S, "of the render routes only"),
}

_CONVERSATION: Final = _allowed("the client's own tokens and probabilities", "top_logprobs") | {
    "media_io_kwargs": (_R, "changes how the server loads media: only an operator may set it"),
    "mm_processor_kwargs": (_R, "changes how the server preprocesses media: only an operator may set it"),
}

_GENERATION: Final = (
    _SAMPLING
    | _CONTROL
    | _allowed(
        "sampling of the client's own answer",
        "max_tokens n min_tokens allowed_token_ids bad_words spaces_between_special_tokens"
        " truncate_prompt_tokens truncation_side repetition_detection thinking_token_budget length_penalty",
    )
    | _allowed("the client's own tokens and probabilities", "logprobs prompt_logprobs")
    | _allowed("how the client's own answer is shown", "return_tokens_as_token_ids return_token_ids")
    | _allowed("how to answer", "stream_options add_special_tokens response_format echo")
    | _allowed("groups more tokens per chunk than the server does, never fewer", "stream_interval")
    | {
        "use_beam_search": (
            _R,
            "beam search makes requests of its own and cannot speculate: use n for several answers",
        ),
        "logprob_token_ids": (
            _R,
            "vLLM cannot combine it with speculating requests of the same batch: use top_logprobs",
        ),
        "routed_experts_prompt_start": (_S, "exposes the routing of mixture models"),
        "return_token_offsets": (_S, "of the render routes only"),
    }
)

CHAT: Final = (
    _GENERATION
    | _CONVERSATION
    | _allowed("the conversation", "messages documents tools tool_choice parallel_tool_calls")
    | _allowed("how to answer", "max_completion_tokens reasoning_effort include_reasoning")
    | _allowed(
        "how the conversation becomes a prompt",
        "add_generation_prompt continue_final_message chat_template_kwargs return_prompt_text",
    )
    | {"chat_template": (_R, "a template runs in the server: only an operator may set it")}
)

COMPLETION: Final = (
    _GENERATION
    | _allowed("the text", "prompt suffix")
    | {"prompt_embeds": (_R, "drafters need the prompt's tokens: send prompt")}
)

_NOT_BOUND: Final = "responses are not kept per tenant: send the whole conversation as input"
RESPONSES: Final = (
    _SAMPLING
    | _CONTROL
    | _CONVERSATION
    | _allowed("the conversation", "input instructions tools tool_choice parallel_tool_calls max_tool_calls")
    | _allowed(
        "how to answer",
        "max_output_tokens reasoning include_reasoning text truncation include chat_template_kwargs metadata"
        " enable_response_messages",
    )
    | {
        "background": (_R, _NOT_BOUND),
        "store": (_R, _NOT_BOUND),
        "previous_response_id": (_R, _NOT_BOUND),
        "previous_input_messages": (_R, _NOT_BOUND),
        "prompt": (_R, "stored prompts are not kept here: send instructions and input"),
        "prompt_cache_key": (_S, "prefix caching is per tenant"),
        "service_tier": (_S, "there is one tier"),
    }
)

TOKENIZE: Final = _allowed(
    "the text",
    "model prompt messages tools add_special_tokens add_generation_prompt continue_final_message"
    " return_token_strs chat_template_kwargs",
) | {
    "chat_template": CHAT["chat_template"],
    "media_io_kwargs": _CONVERSATION["media_io_kwargs"],
    "mm_processor_kwargs": _CONVERSATION["mm_processor_kwargs"],
}
DETOKENIZE: Final = _allowed("the tokens", "model tokens")

TABLES: Final[dict[str, Table]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSES,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
"""By route; `speculation` and `prediction` are the gateway's own and gone before a table is applied."""
