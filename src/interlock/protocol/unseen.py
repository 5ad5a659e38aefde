"""What nobody sees in a name: spaces, and letters that show nothing though they count as printable.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

UNSEEN: Final = re.compile(
    "[\\s\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
