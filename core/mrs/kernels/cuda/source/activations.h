// What is computed of a gate: by the option ACTIVATION of the compiler, one of these names.
#pragma once

constexpr int NO_ACTIVATION = 0, SILU = 1, GELU_TANH = 2, QUICK_GELU = 3, SIGMOID = 4, RELU = 5,
              RELU2 = 6;

DEVICE float activated(float x) {
  if (ACTIVATION == RELU || ACTIVATION == RELU2) {
    const float positive = x > 0.0f ? x : 0.0f;
    return ACTIVATION == RELU ? positive : positive * positive;
  }
  // All others are made of the logistic function; tanh(y) = 2 * logistic(2 * y) - 1.
  const float inner = ACTIVATION == GELU_TANH ? 1.5957691216f * (x + 0.044715f * x * x * x)
                      : ACTIVATION == QUICK_GELU ? 1.702f * x
                                                 : x;
  const float logistic = 1.0f / (1.0f + exponential(-inner));
  return ACTIVATION == SIGMOID ? logistic : x * logistic;
}
