"""Remembers the speed that a profile measured, for later plans on this machine."""

from __future__ import annotations

import math

from mrs.engine.profile.run import ProfileResult
from mrs.plan.learn_speed import learn_speed
from mrs.plan.plan import Plan
from mrs.plan.speed.learnt import Pace


def learn_speed_of(profile: ProfileResult, plan: Plan) -> None:
    pace = Pace()
    pace.add_step(1 / profile.decode_tokens_per_s if profile.decode_tokens_per_s else math.inf)
    pace.add_prompt(profile.prompt_tokens, profile.prompt_tokens / profile.prompt_tokens_per_s)
    learn_speed(plan, pace)
