#!/usr/bin/env python3
"""Shuffles the order of warp colours without two of a kind side by side."""

import random
import sys
from collections import Counter


def shuffled(colours, seed=None):
    """Returns the colours in an order without equal neighbours, or raises ValueError."""
    left = Counter(colours)
    chance = random.Random(seed)
    order = []
    while left:
        choices = [colour for colour in left if not order or colour != order[-1]]
        if not choices:
            raise ValueError("too many of one colour")
        most = max(left[colour] for colour in choices)
        colour = chance.choice([colour for colour in choices if left[colour] == most])
        order.append(colour)
        left[colour] -= 1
        if not left[colour]:
            del left[colour]
    return order


if __name__ == "__main__":
    for colour in shuffled(sys.argv[1:]):
        print(colour)
