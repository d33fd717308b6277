// Memory of requests, by who holds it and for how long.
#ifndef EDGEWISE_KERNELS_WORKSPACE_H_
#define EDGEWISE_KERNELS_WORKSPACE_H_

namespace edgewise {

// Each has memory of its own where a backend keeps memory: what stays long does not break up what comes and goes, and
// one use never takes the room of another.
enum class Workspace {
  kBatch,     // rows of a forward pass
  kPrompt,    // rows of a generation
  kCaches,    // keys and values of generations
  kAttention  // what one call of attention makes of its keys and values; taken by the backend itself
};
inline constexpr int kWorkspaces = 4;

}  // namespace edgewise

#endif  // EDGEWISE_KERNELS_WORKSPACE_H_
