"""Muon for the matrices of a Transformer, AdamW for the rest: fewer steps than AdamW alone, which counts on a CPU."""
import torch


def orthogonalise(g, steps=5):
    """g [m, r, c] -> nearly the orthogonal factor of each matrix, by Newton-Schulz iterations."""
    transposed = g.shape[-2] > g.shape[-1]
    x = g.mT if transposed else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if transposed else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; decoupled weight decay. `params`: matrices [r, c]."""

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, params in shapes.items():            # matrices of one shape are multiplied together
                directions = []
                for p in params:
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    directions.append(p.grad.lerp(buffer, group["momentum"]))
                scale = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonalise(torch.stack(directions))):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)


class Optimizers:
    """Muon on the layers' matrices, AdamW on embeddings, norms, biases and the output layer."""

    def __init__(self, model, rate=0.02, adam_rate=0.003, decay=0.1):
        matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "layer" in name]
        held = set(map(id, matrices))
        others = [p for p in model.parameters() if id(p) not in held]
        self.parts = [Muon(matrices, rate, weight_decay=decay),
                      torch.optim.AdamW(others, adam_rate, betas=(0.9, 0.99), weight_decay=0.0)]
        self.rates = [rate, adam_rate]

    def step(self, factor=1.0):
        """One step at `factor` times the rates; then the gradients are gone."""
        for part, rate in zip(self.parts, self.rates):
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self):
        return [part.state_dict() for part in self.parts]

    def load(self, states):
        for part, state in zip(self.parts, states):
            part.load_state_dict(state)


def rise_and_fall(step, steps, warm=0.02, flat=0.5):
    """The factor of a step: a short rise, a flat part, a linear fall to zero."""
    return min(1.0, (step + 1) / max(1, warm * steps), (1 - step / steps) / (1 - flat))
