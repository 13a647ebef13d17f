"""The transfer function of sRGB, IEC 61966-2-1: from light to display values, and back."""

import numpy as np
import torch
from torch import Tensor


def encode_srgb(light: np.ndarray) -> np.ndarray:
    """Linear values in [0, 1] to display values; the maximum avoids warnings in the unused branch."""
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 1e-9) ** (1 / 2.4) - 0.055)


def decode_srgb(shown: Tensor) -> Tensor:
    """Display values in [0, 1] to linear ones, the inverse of `encode_srgb`."""
    return torch.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)
