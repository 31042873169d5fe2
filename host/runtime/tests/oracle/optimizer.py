"""Golden bits of the optimizer kernels, from NumPy.

Writes `optimizer.txt` beside this file: for each case the scalars, then for each element and step the bits of the
gradient, and the bits of p, m and v after the last step. The rules are written again here, in NumPy's fp32, whose
operations round once each as the kernels' do. Scalars are prepared in fp64 and rounded once.

    python host/runtime/tests/oracle/optimizer.py
"""

from pathlib import Path

import numpy as np

F = np.float32
ELEMENTS = 24
STEPS = 3
HYPER = {"lr": 2e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
UNSCALE = F(0.125)


def update(kind, step, decay, g, p, m, v):
    lr, beta1, beta2 = HYPER["lr"], HYPER["beta1"], HYPER["beta2"]
    eps, one1, one2, b1, b2 = F(HYPER["eps"]), F(1 - beta1), F(1 - beta2), F(beta1), F(beta2)
    lam = F(decay)
    if kind in ("adam", "adamw"):
        alpha = F(-lr / (1 - beta1**step))
        root = F(1 / np.sqrt(np.float64(1 - beta2**step)))
        omega = F(1 - lr * decay) if kind == "adamw" else F(1)
        g = g * UNSCALE
        if kind == "adam":
            g = g + lam * p
        v = g * g * one2 + v * b2
        m = g * one1 + m * b1
        p = omega * p + (m / (np.sqrt(v) * root + eps)) * alpha
    elif kind == "adagrad":
        g0 = g * UNSCALE
        g1 = g0 + lam * p
        v = g1 * g1 + v
        p = p + (g0 / (np.sqrt(v) + eps)) * F(-lr)
    else:
        g = g * UNSCALE + lam * p
        m = one1 * g + b1 * m
        p = p + F(-lr) * m
    for array in (p, m, v):
        assert array.dtype == np.float32
    return p, m, v


def words(array):
    return " ".join(f"{word:08x}" for word in array.view(np.uint32))


def gradients(rng):
    """Magnitudes over many powers of two, with zeros, denormals and large values among them."""
    g = (rng.standard_normal(ELEMENTS) * 2.0 ** rng.integers(-30, 12, ELEMENTS)).astype(F)
    g[:6] = [0.0, -0.0, 1e-40, -1e-42, 3e4, -1e-20]
    return g


def main():
    rng = np.random.default_rng(2024)
    lines = [f"# lr {HYPER['lr']} beta1 {HYPER['beta1']} beta2 {HYPER['beta2']} eps {HYPER['eps']} unscale {UNSCALE}"]
    for kind in ("adam", "adamw", "adagrad", "sgd-momentum"):
        for decay in (0.0, 0.01):
            p = rng.standard_normal(ELEMENTS).astype(F)
            m, v = np.zeros(ELEMENTS, F), np.zeros(ELEMENTS, F)
            lines += [f"case {kind} {decay}", f"p {words(p)}"]
            for step in range(1, STEPS + 1):
                g = gradients(rng)
                p, m, v = update(kind, step, decay, g, p, m, v)
                lines += [f"g {words(g)}"]
            lines += [f"p {words(p)}", f"m {words(m)}", f"v {words(v)}", f"h {' '.join(f'{x:04x}' for x in p.astype(np.float16).view(np.uint16))}"]
    Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    with np.errstate(over="raise", invalid="raise"):
        main()
