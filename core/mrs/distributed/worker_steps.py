"""The steps of a worker: hidden states come in, go through its layers, and go on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mrs.distributed.checked_step import CheckedImage, CheckedStep
from mrs.distributed.hidden_states import receive_hidden, send_hidden
from mrs.distributed.loaded_part import LoadedPart
from mrs.distributed.protocol.channel import Channel, Damaged
from mrs.distributed.protocol.messages import Assignment, Step
from mrs.errors import BadIndex
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

    @torch.inference_mode()
    def compute(self, step: Step) -> None:
        """Compute a step, after its commands.

        Raises EOFError and OSError if another process ends, and Damaged.
        """
        stage = self._part.stage
        for command in step.commands:
            stage.run(command)
        checked = stage.checked(step)
        try:
            out = self._computed(checked, stage.batch(checked))
        except BadIndex as error:
            raise Damaged(error.what, where=error.where) from error
        self._pass_on(checked, out)

    def _computed(self, step: CheckedStep, batch: ForwardBatch) -> Tensor:
        if self._own.is_first:
            batch, x = self._first(step, batch)
        else:
            x = self._received(step)
        return self._part.stage.compute(step, batch, x)

    def _first(self, step: CheckedStep, batch: ForwardBatch) -> tuple[ForwardBatch, Tensor]:
        """The batch with all that the head's has, and what the first layer reads."""
        decoder = self._part.decoder
        assert decoder is not None
        assert step.token_ids is not None
        images = tuple(map(self._image, step.images))
        batch = replace(batch, token_ids=torch.from_numpy(step.token_ids), images=images)
        batch = decoder.with_layer_inputs(batch)
        return batch, decoder.first_states(batch)

    def _image(self, image: CheckedImage) -> ImageFeatures:
        """The features of an image, from rank 0."""
        group = self._part.group.now
        assert group is not None
        features = group.spread(torch.empty(len(image.rows), image.width))
        return ImageFeatures(torch.from_numpy(image.rows), features)

    def _received(self, step: CheckedStep) -> Tensor:
        shape, group = (step.tokens, self._part.stage.width), self._part.group.now
        if self._left is None:
            x = torch.empty(shape)
        else:
            x = receive_hidden(self._left, step.number, shape)
        return x if group is None else group.spread(x)

    def _pass_on(self, step: CheckedStep, out: Tensor) -> None:
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
