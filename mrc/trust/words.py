# SPDX-License-Identifier: Apache-2.0
"""One-time codes of words. Pure.

Three words out of 256 are 24 random bits. A code is worth one guess, so that is enough.
"""

from __future__ import annotations

import re
import secrets

_TEXT = """
    acid acorn actor agent alarm album alert amber angle ankle apple april apron arena armor
    arrow atlas attic audio award bacon badge bagel baker banjo barn basil beach beard bench
    berry bike birch bison blade blank bloom board boat bolt bonus book boot bottle bowl brain
    brave bread brick bridge brush bucket bugle butter cabin cable cactus camel camera canal
    candle canoe canvas carbon cargo carpet carrot castle cedar cello chalk charm cheese cherry
    chess cider cinema circle clay clock cloud clover coast cobra cocoa comet coral corner
    cotton cousin crane crayon cricket crown crystal curtain dance dawn deck denim desert diary
    dinner dolphin domino donkey dragon drum duck eagle earth echo elbow ember engine falcon
    fancy feather fern ferry fiddle field finger flame flute forest fossil fox frog frost galaxy
    garden garlic gecko ginger globe glove goat grape gravel guitar hammer harbor harp hazel
    hedge helmet heron hill honey hotel igloo index island ivory jacket jaguar jelly jewel
    jungle kayak kettle kitten koala ladder lagoon lamp laser lemon lilac lion lizard lotus
    lunar magnet mango maple marble meadow melon metal mint mirror mixer monkey moon motor
    museum nectar needle ninja nylon oasis ocean olive onion opal orbit orchid otter oyster
    paddle palace panda paper parrot pearl pebble pencil pepper piano pilot pine planet plaza
    poem polar pony poppy prism puzzle quartz rabbit radio raven ribbon river robin rocket rose
    ruby saddle salad salmon scarf school sesame shadow silver sketch spider sponge sugar summer
    sunset tailor teapot thunder tiger tomato tulip tunnel turtle velvet violin walnut
"""
WORDS = tuple(_TEXT.split())
_SEPARATORS = re.compile(r"[\s\-_.]+")
COUNT = 3


def new_code() -> str:
    """A random code, such as `maple-rocket-cider`."""
    return "-".join(secrets.choice(WORDS) for _ in range(COUNT))


def normal(code: str) -> str:
    """The code as both ends use it, however a user typed it; raises ValueError if it is none."""
    words = _SEPARATORS.split(code.strip().lower())
    wrong = [word for word in words if word not in WORDS]
    if wrong or len(words) != COUNT:
        raise ValueError(f"a code has {COUNT} words of the other host, such as maple-rocket-cider")
    return "-".join(words)
