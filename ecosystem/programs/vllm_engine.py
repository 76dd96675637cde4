"""A real vLLM engine that is told by its standard input what to do, and answers in lines that begin with ANSWER.

`python vllm_engine.py MODEL [KV_TRANSFER_CONFIG]`; requests are JSON: {"do": "generate", "prompt": 3}, {"do": "reset"},
{"do": "end"}. Weights are drawn by vLLM, the same in every process. HOLDFAST_AS_MOONCAKE puts holdfast where
`mooncake.store` is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time

PROMPT_TOKENS, NEW_TOKENS, BLOCK_TOKENS = 1_000, 8, 32


def mend_llvmlite() -> None:
    """vLLM 0.32.0 on CPUs reads the `__dict__` of whatever modules hold, and ends at llvmlite's `lib`, which takes that
    for the name of a function. One of a class without slots has a `__dict__`."""
    try:
        from llvmlite.binding import ffi
    except ImportError:
        return
    plain = type("Library", (type(ffi.lib),), {})
    copy = plain.__new__(plain)
    for name in getattr(type(ffi.lib), "__slots__", ()):
        setattr(copy, name, object.__getattribute__(ffi.lib, name))
    ffi.lib = copy


def prompt(number: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [(each * 7 + number * 131 + each // 97) % 700 + 3 for each in range(PROMPT_TOKENS)]}


def main() -> None:
    mend_llvmlite()
    if os.environ.get("HOLDFAST_AS_MOONCAKE"):
        from holdfast.compat.mooncake.import_hook import install

        install()
    from vllm import LLM, SamplingParams

    config = json.loads(sys.argv[2]) if len(sys.argv) > 2 else None
    began = time.monotonic()
    engine = LLM(
        sys.argv[1],
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=2048,
        dtype="float32",
        block_size=BLOCK_TOKENS,
        enable_prefix_caching=True,
        max_num_seqs=4,
        seed=0,
        **({"kv_transfer_config": config} if config else {}),
    )
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, detokenize=False)
    answer({"ready": time.monotonic() - began})
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "end":
            return
        if asked["do"] == "reset":
            answer({"reset": engine.reset_prefix_cache()})
            continue
        began = time.monotonic()
        (done,) = engine.generate([prompt(asked["prompt"])], sampling, use_tqdm=False)
        seconds = time.monotonic() - began
        tokens = list(done.outputs[0].token_ids)
        answer({"tokens": tokens, "cached": done.num_cached_tokens or 0, "seconds": seconds})


def answer(facts: dict[str, object]) -> None:
    print("ANSWER " + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
