/* Convolutions and recurrences of all sequences of a step, each with its own state. */
#ifndef MRS_SEQUENCES_H
#define MRS_SEQUENCES_H

#include "recurrent/convolution.h"
#include "recurrent/delta_rule.h"
#include "recurrent/state_batch.h"
#include "recurrent/state_space.h"

/* The arguments have no tokens and no state yet; what they read and write are the rows of all
 * tokens, those of each sequence adjacent. */

/* The channels are those from `first` on of what the states remember. */
void convolve_sequences(const KernelTable *kernels, const StateBatch *batch,
                        Convolution convolution, int64_t first, int threads);

/* False if memory is missing. */
bool update_sequences(const KernelTable *kernels, const StateBatch *batch, DeltaRule rule,
                      bool by_key, int threads);

void scan_sequences(const KernelTable *kernels, const StateBatch *batch, StateSpace space,
                    int threads);

#endif
