"""UPDATE's shape: what names the resource stands beside, what is changed of it stands in `input`.

Foreign tools take flat arguments. Which of them are identifiers is known by the config, else by
their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from interlock.catalog.aql.operation import Parameter
from interlock.catalog.aql.parameters import INPUT

_NAMES_SOMETHING: Final = re.compile(
    r"(?:.*_)?(?:id|uuid|name|path|number|key)\Z|(?:owner|repo|uri|url|ref|slug)\Z"
)
FEWEST: Final = 2
"""With fewer parameters there is nothing to update something with."""


def arranged(
    parameters: Sequence[Parameter], identifiers: Sequence[str] = ()
) -> tuple[Parameter, ...]:
    """The parameters of an UPDATE, those of its `input` marked. `identifiers` are the config's: own
    or public names, required or not.
    """
    if identifiers:
        named = set(identifiers)
        outside = {one.name for one in parameters if one.name in named or one.own in named}
    else:
        outside = {
            one.name for one in parameters if one.required and _NAMES_SOMETHING.match(one.name)
        }
    outside.discard(INPUT)
    if len(outside) == len(parameters) or not outside:
        # Nothing left to change, or nothing to change it of: the first that is required names it.
        first = next((one for one in parameters if one.required and one.name != INPUT), None)
        outside = set() if first is None else {first.name}
    return tuple(one if one.name in outside else replace(one, inside=True) for one in parameters)
