"""One load of a model by the Python package mistralrs, for `uqff_mistralrs.py`.

    python mistralrs_process.py write FOLDER ISQ PATH
    python mistralrs_process.py read FOLDER PROMPT FILE

prints RESULT and, after reading, the likeliest next tokens with their log probabilities as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mistralrs

SETTINGS: dict[str, Any] = {"max_seqs": 1, "prefix_cache_n": 0, "no_paged_attn": True}


def main(do: str, folder: str, what: str, file: str) -> None:
    kind = json.loads((Path(folder) / "config.json").read_text())["model_type"]
    arch = getattr(mistralrs.Architecture, kind.capitalize())
    plain = mistralrs.Which.Plain
    if do == "write":
        which = plain(folder, arch=arch, write_uqff=file)
        mistralrs.Runner(which=which, in_situ_quant=what, **SETTINGS)
        print("RESULT null")
        return
    runner = mistralrs.Runner(which=plain(folder, arch=arch, from_uqff=file), **SETTINGS)
    asked = mistralrs.ChatCompletionRequest(
        model="default",
        messages=[{"role": "user", "content": what}],
        max_tokens=1,
        temperature=0.0,
        logprobs=True,
        top_logprobs=20,
    )
    (position,) = runner.send_chat_completion_request(asked).choices[0].logprobs.content
    print("RESULT", json.dumps([[each.token, each.logprob] for each in position.top_logprobs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
