"""One saved encoder and its hidden states a case, shared by all checks."""

from __future__ import annotations

import pytest
import torch
import transformers
from encoder_cases import CASES, TOKENS, Encoded, EncoderCase

from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture for every test of this folder


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.id)
def encoded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    case: EncoderCase = request.param
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(case.id)
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = transformers.AutoModel.from_config(config).float().eval()
    with torch.no_grad():  # transformers begins with norms of 1 and biases of 0
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    ids = torch.randint(4, config.vocab_size, (TOKENS,)).tolist()
    with torch.inference_mode():
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
    return Encoded(case, folder, ids, hidden)
