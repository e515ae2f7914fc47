"""The steps of a worker: hidden states come in, go through its layers, and go on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mrs.distributed.channel import Channel, Damaged
from mrs.distributed.hidden_states import receive_hidden, send_hidden
from mrs.distributed.loaded_part import LoadedPart
from mrs.distributed.messages import Assignment, Step, StepImage
from mrs.model.batch import ForwardBatch, ImageFeatures


class WorkerSteps:
    """Computes steps that the head describes.

    | rank of a stage | the first stage  | later stages                                      |
    | --------------- | ---------------- | ------------------------------------------------- |
    | first           | is the head      | receives from `left`, spreads, sends to `right`   |
    | others          | look up tokens   | get what the first one has received               |
    """

    def __init__(
        self, part: LoadedPart, own: Assignment, left: Channel | None, right: Channel | None
    ) -> None:
        self._part, self._own = part, own
        self._left, self._right = left, right
        if left is not None:
            left.most_data_bytes = 4 * part.stage.width * part.most_tokens

    @torch.inference_mode()
    def compute(self, step: Step) -> None:
        """Compute a step, after its commands.

        Raises EOFError and OSError if another process ends, and Damaged.
        """
        for command in step.commands:
            self._part.stage.run(command)
        tokens = sum(each.count for each in step.sequences)
        if not all(0 <= row < tokens for row in step.wanted):
            raise Damaged(f"rows {step.wanted} of {tokens}")
        if not 0 <= step.scored <= len(step.wanted):
            raise Damaged(f"{step.scored} of {len(step.wanted)} rows")
        batch = self._part.stage.batch(step)
        if self._own.is_first:
            batch, x = self._first(step, batch)
        else:
            x = self._received(step, tokens)
        self._pass_on(step, self._part.stage.compute(step, batch, x))

    def _first(self, step: Step, batch: ForwardBatch) -> tuple[ForwardBatch, Tensor]:
        """The batch with all that the head's has, and what the first layer reads."""
        decoder, tokens = self._part.decoder, len(batch.token_ids)
        assert decoder is not None
        ids = np.frombuffer(step.tokens, np.int64)
        vocabulary = decoder.spec.vocab_size + decoder.spec.extra_tokens
        if len(ids) != tokens or not 0 <= ids.min() <= ids.max() < vocabulary:
            raise Damaged(f"{len(ids)} tokens of {tokens}, or ids outside of the vocabulary")
        images = tuple(self._image(each, tokens) for each in step.images)
        batch = replace(batch, token_ids=torch.from_numpy(ids.copy()), images=images)
        batch = decoder.with_layer_inputs(batch)
        return batch, decoder.first_states(batch)

    def _image(self, image: StepImage, tokens: int) -> ImageFeatures:
        """The features of an image, from rank 0."""
        rows, group = np.frombuffer(image.rows, np.int64), self._part.group.now
        assert group is not None
        assert self._part.decoder is not None
        spec = self._part.decoder.spec
        most = spec.hidden_size * (1 + len(spec.layers))
        if not len(rows) or not 0 <= rows.min() <= rows.max() < tokens or image.width > most:
            raise Damaged(f"{image.width} features in rows {rows.tolist()} of {tokens}")
        features = group.spread(torch.empty(len(rows), image.width))
        return ImageFeatures(torch.from_numpy(rows.copy()), features)

    def _received(self, step: Step, tokens: int) -> Tensor:
        shape, group = (tokens, self._part.stage.width), self._part.group.now
        if self._left is None:
            x = torch.empty(shape)
        else:
            x = receive_hidden(self._left, step.number, shape)
        return x if group is None else group.spread(x)

    def _pass_on(self, step: Step, out: Tensor) -> None:
        decoder, own = self._part.decoder, self._own
        if self._right is not None and not own.is_last:
            send_hidden(self._right, step.number, out)
        elif not step.wanted:
            return
        elif self._right is not None:
            send_hidden(self._right, step.number, out[step.wanted])
        elif decoder is not None and not own.is_last:
            decoder.finish_spread(len(step.wanted), step.scored)
        elif decoder is not None:
            decoder.finish(out[step.wanted], step.scored)
