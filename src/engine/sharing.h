// Two requests with the same beginning compute it once: the later one waits for what the earlier one is computing, and
// goes on from there. Internal to the engine.
#pragma once

#include "engine/sequence.h"

namespace quire {

// Whether a waiting sequence should wait for what a running one, or one that is admitted before it, will have made
// findable: more than the cache has now. `recurrent`: the earlier one is asked to save its state where the two part.
// Who waits holds nothing, and waits for work that does not depend on it, so this ends: when the earlier one has passed
// the place, or is swapped out or finished.
bool must_wait(const Sequence& waiting, Sequence& earlier, bool recurrent);

}  // namespace quire
